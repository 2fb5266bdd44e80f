"""Every operator of the torch that is installed: emulated, composed of others, free of products, or refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from emulated import random

from fplab.errors import LabError
from fplab.nn import emulate
from fplab.nn.emulation import operations
from fplab.nn.emulation.operations import is_free

SOUNDS_LIKE_A_PRODUCT = re.compile(
    r"mm|mv|matmul|conv|linear|lstm|gru|rnn|attention|cdist|euclidean|dot|einsum|linalg|lu_|svd|chol|solve|inverse|"
    r"matri|multi_head|trilinear|attn|transformer|eig|lstsq|pinv|householder|ormqr|orgqr|geqrf|bilinear|qr$|gemm"
)
NO_PRODUCT = re.compile(
    r"upsample|gamma|_weight_norm|logspace|linspace|mish|silu|gelu|elu|symmetric|summ|pack|linalg_(cross|vector_norm)|convert|cummin|cummax"
    r"|glu_|hamming|slice_inverse|linalg__powsum|linalg_check_errors|jagged_dummy|_thnn_fused_|_foreach_m|embedding"
)
# In none of the tables, and so refused: other devices' operations, tests of the registry, packing of weights.
NOT_HERE = re.compile(r"cudnn|miopen|^_test_|^_foobar$|int4|4bit|mkldnn_reorder|^quantized_|semi_structured|_cslt_")


def registry() -> Iterator[tuple[str, str]]:
    """The full name of each operator of torch's own, and that of its function, without the underscore of "in place"."""
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        base = name.partition(".")[0]
        if space == "aten":
            yield full, base.removesuffix("_") if base.endswith("_") and not base.endswith("__") else base


def test_every_operator_is_in_a_table_or_composed_of_those_that_are() -> None:
    """What a new torch brings is refused until somebody has looked at it; here its name is said."""
    unknown = set()
    for full, base in registry():
        composed = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
        tables = (base in operations.EMULATED) + (base in operations.REFUSED) + is_free(base)
        assert tables < 2, base
        if not tables and not composed and not NOT_HERE.search(base):
            unknown.add(base)
    assert not unknown, f"nobody has looked whether they multiply matrices: {' '.join(sorted(unknown))}"


def test_no_operator_that_sounds_like_a_product_is_called_free_of_products() -> None:
    names = {base for _, base in registry() if is_free(base)}
    assert not [name for name in names if SOUNDS_LIKE_A_PRODUCT.search(name) and not NO_PRODUCT.search(name)]
    assert len(names) > 700


def test_what_torch_counts_as_floating_point_work_is_known() -> None:
    from torch.utils.flop_counter import flop_registry

    for packet in flop_registry:
        name = getattr(packet, "__name__", str(packet))
        if "flex_attention" not in str(packet):  # a higher-order operation: torch refuses it under any mode
            assert name in operations.EMULATED or name in operations.REFUSED, name


@pytest.mark.parametrize("space", ["aten", "fplab_test"])
def test_a_new_operator_is_refused_with_what_to_do(space: str) -> None:
    """As a later torch, or a library, would bring it."""
    library = torch.library.Library(space, "FRAGMENT")
    library.define("fplab_new(Tensor x) -> Tensor")
    library.impl("fplab_new", lambda x: x * 2, "CPU")
    x, name = random(3, 4), "fplab_new" if space == "aten" else f"{space}::fplab_new"
    why = "not among the operations that are known to" if space == "aten" else "not torch's own may multiply matrices"
    try:
        run = getattr(torch.ops, space).fplab_new
        text = rf"{name} is not emulated \(.*{why}.*\). .* allow=\['{name}'\] lets it run all the same"
        with emulate("H100", "fp16"), pytest.raises(LabError, match=text):
            run(x)
        with emulate("H100", "fp16", allow=[name]) as lab:
            assert torch.equal(run(x), x * 2)
        assert lab.report().unemulated == (name,)
    finally:
        library._destroy()


def test_an_operator_of_python_s_is_refused_and_what_it_is_composed_of_would_not_be() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x @ x.mT

    operator = torch.library.custom_op("fplab_test::python_s", twice, mutates_args=(), schema="(Tensor x) -> Tensor")
    library = torch.library.Library("fplab_test", "FRAGMENT")
    library.define("composed(Tensor x) -> Tensor")
    library.impl("composed", twice, "CompositeImplicitAutograd")
    x = random(3, 4)
    try:
        with emulate("H100", "fp16"), pytest.raises(LabError, match="fplab_test::python_s is not emulated"):
            operator(x)
        with emulate("H100", "fp16") as run:
            assert torch.equal(torch.ops.fplab_test.composed(x), x @ x.mT)
        assert [(row.operation, row.count) for row in run.report().rows] == [("mm", 2)]
    finally:
        library._destroy()
        operator._lib._destroy()


# In a process of its own: torch's samples set options of the whole process when they are imported.
WALK = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import torch
from torch.testing._internal.common_methods_invocations import op_db
from fplab.errors import LabError
from fplab.nn import emulate
from test_nn_emulate_leaks import LeakError, without_kernels
found = {"run": [], "refused": [], "leaked": [], "failed": []}
samples = []
for op in op_db:
    if op.dtypes and not op.name.startswith(("jiterator", "torch._scaled")):  # for CUDA alone
        dtype = torch.float32 if torch.float32 in op.dtypes else min(op.dtypes, key=str)
        grad = op.supports_autograd and dtype == torch.float32
        samples += [(op, x) for _, x in zip(range(2), op.sample_inputs("cpu", dtype, requires_grad=grad))]
with without_kernels():
    for op, x in samples:
        kind, text = "run", op.name
        try:
            with emulate("H100") as lab:
                y = op(x.input, *x.args, **x.kwargs)
            results = y if isinstance(y, (tuple, list)) else [y]
            graded = [t.abs().sum() for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
            if graded:
                sum(graded).backward()
        except LabError as error:
            kind, text = "refused", str(error)
        except LeakError as error:
            kind, text = "leaked", f"{op.name}: {error}"
        except Exception as error:
            kind, text = "failed", f"{op.name}: {error!r}"
        found[kind].append(text)
print(json.dumps(found))
"""


def test_torch_s_own_samples_of_its_operators_run_without_a_kernel_of_a_product_or_are_refused(tmp_path: Path) -> None:
    """Forward and backward; whatever multiplies no matrices must run, so the table of those is not too short."""
    file = tmp_path / "walk.py"  # each sample looks up the lines of its stack: those of -c anew, in every folder
    file.write_text(WALK)
    walk = [sys.executable, str(file), str(Path(__file__).parent)]
    done = subprocess.run(walk, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["leaked"] == []
    assert found["failed"] == []
    unlisted = [text for text in found["refused"] if re.match(r"[a-z_0-9]+ is", text) and operations._UNKNOWN in text]
    assert unlisted == []
    assert len(found["run"]) > 900
    assert len(found["refused"]) > 50
