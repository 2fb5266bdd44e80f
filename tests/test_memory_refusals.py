"""Requests that make no sense are refused, with the rule; the texts are part of the interface."""

import numpy as np
import refusals
import torch

from fplab.memory import Transformer, estimate, smallest
from fplab.memory.units import GB

test_nonsense_is_refused_with_the_rule = refusals.saying(
    (lambda: estimate("gpt5"), "fplab.memory.estimate('gpt5'): unknown preset 'gpt5'. Allowed: gpt2, gpt2-xl, gpt3, "),
    (lambda: estimate("gpt2", gpu=2), "unknown option 'gpu'. Allowed: gpus, zero, "),
    (lambda: estimate("gpt2", gpu=2), "Did you mean 'gpus'?"),
    (lambda: estimate("gpt2", gpus=0), "gpus=0 is not possible; allowed: 1 or more."),
    (lambda: estimate("gpt2", gpus=1.5), "gpus=1.5 is not an integer; allowed: 1 to "),
    (lambda: estimate("gpt2", zero=4), "zero=4 is not possible; allowed: 0 to 3: 0 is plain data parallelism"),
    (lambda: estimate("gpt2", flash="2"), "flash='2' is not possible; allowed: True, False."),
    (lambda: estimate("gpt2", bucket_views=1), "bucket_views=1 is not possible; allowed: True, False."),
    (lambda: estimate("gpt2", partition=["rows"]), "unknown partition ['rows']. Allowed: flat, rows, tensors."),
    (lambda: estimate("gpt2", inference=[1]), "unknown inference format [1]. Allowed: fp32, "),
    (lambda: Transformer("x", 2, 8, 2, 10, 8, gated=[1]), "gated=[1] is not possible; allowed: True, False."),
    (lambda: Transformer(["x"], 2, 8, 2, 10, 8), "name=['x'] is not text."),
    (lambda: smallest("gpt2", "80 GB"), "capacity='80 GB' is not an integer; allowed: 0 to "),
    (lambda: estimate(torch.nn.LazyLinear(3)),
     "LazyLinear has lazy parameters without a shape yet; run it once before."),
    (lambda: estimate(torch.nn.Linear(3, 4), inputs="x"),
     "Linear does not run on shapes alone (meta, bfloat16): linear(): argument 'input'"),
    (lambda: estimate("gpt2", micro_batch=-1), "micro_batch=-1 is not possible"),
    (lambda: estimate("gpt2", gpus=6, tensor=4), "gpus=6 is no multiple of tensor*pipeline = 4*1 = 4; data parall"),
    (lambda: estimate("gpt2", gpus=5, tensor=5),
     "tensor=5 does not divide heads=12 of gpt2; allowed: 1, 2, 3, 4, 6, 12."),
    (lambda: estimate("llama3-8b", gpus=16, tensor=16),
     "tensor=16 does not divide kv_heads=8 of llama3-8b; allowed: 1, 2, 4, 8."),
    (lambda: estimate("gpt2", gpus=13, pipeline=13),
     "pipeline=13 stages are more than the 12 layers of gpt2; a stage needs one."),
    (lambda: estimate("gpt2", gpus=4, pipeline=4, schedule="1f1d"),
     "unknown schedule '1f1d'. Allowed: gpipe, 1f1b, interleaved. Did you mean '1f1b'?"),
    (lambda: estimate("gpt2", gpus=4, pipeline=4, chunks=2),
     "chunks=2 needs schedule='interleaved'; 1f1b has one chunk on each stage."),
    (lambda: estimate("gpt2", gpus=4, pipeline=4, schedule="interleaved", chunks=2, micro_batches=4),
     "12 layers do not divide into pipeline*chunks = 4*2 equal chunks."),
    (lambda: estimate("gpt2", gpus=4, pipeline=4, schedule="interleaved", chunks=3, micro_batches=6),
     "interleaved takes micro-batches in groups of 4; micro_batches=6 is no multiple of it; the nearest: 4, 8."),
    (lambda: estimate("gpt2", sequence_parallel=True),
     "sequence_parallel=True divides what tensor parallelism leaves whole; it needs tensor >= 2."),
    (lambda: estimate("gpt2", gpus=2, tensor=2, sequence_parallel=True, sequence=33),
     "sequence=33 does not divide among tensor=2 ranks"),
    (lambda: estimate("gpt2", sequence=2048), "sequence=2048 is more than the 1024 learned positions of gpt2."),
    (lambda: estimate("gpt2", precision="fp16"),
     "unknown precision 'fp16'. Allowed: fp32, mixed, mixed+fp32grads, amp, bf16, fp8."),
    (lambda: estimate("gpt2", optimizer="adamw8"),
     "unknown optimizer 'adamw8'. Allowed: sgd, momentum, adam, adamw, momentum8bit, adamw8bit. Did you mean"),
    (lambda: estimate("gpt2", recompute="half"), "unknown recomputation 'half'. Allowed: none, selective, full."),
    (lambda: estimate("gpt2", offload="disk"), "unknown offload 'disk'. Allowed: none, optimizer, parameters, chunks."),
    (lambda: estimate("gpt2", offload="chunks", zero=1),
     "offload='chunks' shards every model state, as ZeRO-3 does; zero=1 is no part of it."),
    (lambda: estimate("gpt2", inference="int3"),
     "unknown inference format 'int3'. Allowed: fp32, fp16, bf16, int8, int4."),
    (lambda: estimate(10**9, inference="int8"), "inference needs a configuration, for the keys and values"),
    (lambda: estimate(10**9, gpus=2, tensor=2),
     "tensor=2 needs to know which axis of each tensor is divided; give a Transformer"),
    (lambda: estimate(10**9, gpus=2, pipeline=2),
     "pipeline=2 is not possible; allowed: 1 to 1: a stage needs a layer, and there are 1"),
    (lambda: estimate(0), "parameters=0 is not possible"),
    (lambda: estimate(None), "model=None is not possible; allowed: a preset's name, a Transformer, a torch module"),
    (lambda: estimate(torch.nn.ReLU()), "ReLU has no parameters; there is nothing to estimate."),
    (lambda: estimate("gpt2", gpus=2).rank(2), "rank=2 is not possible; allowed: 0 to 1."),
    (lambda: Transformer("x", 2, 100, 3, 10, 8),
     "heads=3 does not divide hidden=100; each head has hidden/heads values."),
    (lambda: Transformer("x", 2, 96, 8, 10, 8, kv_heads=3),
     "kv_heads=3 does not divide heads=8; queries share keys in groups."),
    (lambda: Transformer("x", -2, 96, 8, 10, 8), "layers=-2 is not possible"),
    (lambda: Transformer("x", 2, 96, 8, 10, 8, positions="none"),
     "unknown kind of positions 'none'. Allowed: learned, rotary, alibi."),
    (lambda: estimate("gpt2", partition="rows"), "partition='rows' has no effect here; it is how ZeRO divides"),
    (lambda: estimate("gpt2", schedule="gpipe"), "schedule='gpipe' has no effect here; it is of training in a pi"),
    (lambda: estimate("gpt2", gpus=2, pipeline=2, inference="bf16", schedule="gpipe"), "schedule='gpipe' has no "),
    (lambda: estimate("gpt2", block=64), "block=64 has no effect here; it is of 8-bit optimizer states."),
    (lambda: estimate("gpt2", optimizer="sgd", step_counts=True), "step_counts=True has no effect here; it is of o"),
    (lambda: estimate("gpt2", chunk_budget=9), "chunk_budget=9 has no effect here; it is of offload='chunks'."),
    (lambda: estimate("gpt2", zero=3, bucket=9), "bucket=9 has no effect here; it is of zero=1, zero=2 and offl"),
    (lambda: estimate("gpt2", zero=1, bucket_views=False), "bucket_views=False has no effect here; it is of DDP"),
    *((lambda o=option: estimate(10**9, **o),
       " has no effect on a model of which only parameters are known; give")
      for option in ({"micro_batch": 2}, {"sequence": 9}, {"flash": True}, {"recompute": "full"})),
    (lambda: estimate(torch.nn.Linear(2, 2), inputs=torch.zeros(1, 2), precision="fp8"),
     "torch saves no 8-bit operands that could be traced; precision='fp8' has a formula."),
    (lambda: smallest("gpt2", GB, tensor=2, step=3), "step=3 is no multiple of tensor*pipeline = 2."),
    (lambda: estimate("gpt2", inputs=torch.zeros(3, 16)),
     "inputs= are for a torch module; other activations follow from "),
    (lambda: estimate(torch.nn.Linear),
     "model=Linear is not possible; allowed: a preset's name, a Transformer, a torch"),
    (lambda: estimate("gpt2", gpus=12, pipeline=3, schedule="interleaved", chunks=2, micro_batches=7),
     "interleaved takes micro-batches in groups of 3; micro_batches=7 is no multiple of it; the nearest: 6, 9."),
    (lambda: estimate("gpt2", gpus=3, pipeline=3, schedule="interleaved", chunks=2),
     "interleaved takes micro-batches in groups of 3; micro_batches=1 is no multiple of it; the nearest: 3."),
    (lambda: smallest("gpt2", GB, tensor="2"), "tensor='2' is not an integer"),
    (lambda: smallest("gpt2", GB, step=0), "step=0 is not possible; allowed: 1 to "),
    (lambda: smallest("gpt2", GB, step="2"), "step='2' is not an integer"),
    *((lambda o=option: estimate(torch.nn.Linear(4, 4), inputs=torch.zeros(2, 4), **o),
       "does not change a pass that is")
      for option in ({"recompute": "full"}, {"flash": True}, {"sequence": 3}, {"micro_batch": 2})),
)  # fmt: skip


def test_integers_of_other_libraries_are_integers() -> None:
    """numpy's and torch's count as what they stand for, down to the JSON."""
    plain = estimate("gpt2", gpus=4, zero=2, micro_batch=3, sequence=128).to_json()
    for kind in (np.int64, np.uint8, torch.tensor):
        found = estimate("gpt2", gpus=kind(4), zero=kind(2), micro_batch=kind(3), sequence=kind(128))
        assert found.to_json() == plain
        assert Transformer("x", kind(2), kind(8), kind(2), kind(10), kind(8)) == Transformer("x", 2, 8, 2, 10, 8)
        found = estimate(kind(10**9)) if kind is not np.uint8 else estimate(10**9)
        assert (found.total, found.model.name) == (16 * 10**9, "1,000,000,000 parameters")
