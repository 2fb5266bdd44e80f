"""Units that the CPU of most machines lacks: that they assemble, and AArch64's under an emulator of it."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fplab.hardware import cpu_cases, cpu_units
from fplab.hardware.cpu_units import (
    ARM,
    ARM_EXTENDED,
    ARM_HALVES,
    ARM_OUTER,
    ARM_PAIRS,
    ARM_PRODUCTS,
    ARM_TO_HALF,
    RISCV,
    RISCV_WIDENED,
    SCALARS,
    TILES,
)

MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
void run(long n, void *a, void *b, void *c, void *out, void *flags, void *control);
int main(int argc, char **argv) {
  long n = atol(argv[1]);
  void *given[4] = {0, 0, 0, 0};
  for (int i = 0; i < argc - 2; i++) {
    given[i] = malloc(n * atol(argv[2 + i]));
    if (i < argc - 3 && fread(given[i], atol(argv[2 + i]), n, stdin) != n) return 1;
  }
  run(n, given[0], given[1], given[2], given[argc - 3], 0, 0);
  return fwrite(given[argc - 3], atol(argv[argc - 1]), n, stdout) != n;
}
"""


@pytest.mark.skipif(cpu_units.machine() != "x86_64", reason="this assembler is of another machine than x86-64")
@pytest.mark.parametrize("unit", [*(unit for (_, fmt), unit in SCALARS.items() if fmt == "fp16"), *TILES.values()],
                         ids=lambda unit: unit.name)  # fmt: skip
def test_units_of_other_x86_cpus_assemble(unit):
    binding = cpu_units.assembler()
    for initialize in ("target", "asmprinter", "asmparser"):
        getattr(binding, f"initialize_native_{initialize}")()
    machine = binding.Target.from_triple("x86_64-linux-gnu").create_target_machine(
        cpu="sapphirerapids", features="+avx512fp16,+amx-tile,+amx-bf16,+amx-fp16,+amx-int8"
    )
    assert unit.name in cpu_units.loop(unit)
    assert len(machine.emit_object(binding.parse_assembly(cpu_units.as_function(unit)))) > 400


TARGETS = {ARM: ("aarch64", "x", ".arch armv9-a+fp16+bf16+f32mm+sme"), RISCV: ("riscv64", "a", ".option arch, +v")}


def version_of(emulator):
    """The version of an emulator, (major, minor)."""
    said = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"(\d+)\.(\d+)", said).groups()))


def emulated(unit, operands, folder: Path):
    """What an emulated CPU gives: the same loop, called by a program in C."""
    target, register, directive = TARGETS[unit.machine]
    if not (shutil.which(f"qemu-{target}") and shutil.which(f"{target}-linux-gnu-gcc")):
        pytest.skip(f"qemu-user and gcc-{target}-linux-gnu are not installed")
    cpu = "max" if unit.machine == ARM or version_of("qemu-riscv64") >= (8, 2) else "rv64,v=true,Zfh=true"
    text = re.sub(r"\$(\d)", rf"{register}\1", cpu_units.loop(unit))
    (folder / "run.s").write_text(f"{directive}\n.global run\nrun:\n{text}\nret\n")
    (folder / "main.c").write_text(MAIN)
    subprocess.run([f"{target}-linux-gnu-gcc", "-static", "-o", "main", "main.c", "run.s"], cwd=folder, check=True)
    given = b"".join(x.tobytes() for x in operands)
    sizes = map(str, (len(operands[0]), *unit.widths))
    run = subprocess.run([f"qemu-{target}", "-cpu", cpu, "./main", *sizes], cwd=folder, input=given, check=True,
                         capture_output=True)  # fmt: skip
    width = unit.widths[-1]
    return np.frombuffer(run.stdout, f"u{width}" if width <= 8 else np.uint32)


@pytest.mark.parametrize("name", [*ARM_HALVES, "fcvt"])
def test_the_lab_has_the_bits_of_an_emulated_aarch64(name, tmp_path):
    case = cpu_cases.halves_on_arm(1 << 14)
    given = case.inputs()
    unit, operands = (ARM_TO_HALF, [given["x"]]) if name == "fcvt" else (
        ARM_HALVES[name], cpu_cases.operands_of(name, given))  # fmt: skip
    assert unit.machine == ARM
    got, want = emulated(unit, operands, tmp_path), case.emulate(given, {})[name]
    wrong = np.flatnonzero(got != want)
    assert not len(wrong), [hex(int(x[wrong[0]])) for x in (*operands, got, want)]


@pytest.mark.parametrize("name", ARM_PAIRS)
def test_the_lab_has_the_bits_of_an_emulated_aarch64s_pairs(name, tmp_path):
    case = cpu_cases.pairs_on_arm(1 << 14)
    given = case.inputs()
    got, want = emulated(ARM_PAIRS[name], list(given.values()), tmp_path), case.emulate(given, {})[name].ravel()
    wrong = np.flatnonzero(got != want)
    assert not len(wrong), (len(wrong), [hex(int(x[wrong[0]])) for x in (got, want)])


@pytest.mark.parametrize("unit", [*ARM_OUTER.values(), ARM_PRODUCTS], ids=lambda unit: unit.name)
def test_the_lab_has_the_bits_of_an_emulated_aarch64s_products(unit, tmp_path):
    case = cpu_cases.products_on_arm(1 << 12)
    given = case.inputs()
    names = {one.name: (f"a {fmt}", f"b {fmt}") for fmt, one in ARM_OUTER.items()}.get(unit.name, ("a", "b"))
    c = given["c"] if unit.flag == "sme" else given["c"][:, :4]
    operands = [cpu_cases.as_rows(x) for x in (*(given[name] for name in names), c)]
    got, want = emulated(unit, operands, tmp_path), case.emulate(given, {})[unit.name].ravel()
    if unit is ARM_PRODUCTS:  # whose NaNs are operands' own
        got = np.where((got & 0x7FFFFFFF) > 0x7F800000, np.uint32(0x7FC00000), got)
    wrong = np.flatnonzero(got != want)
    assert not len(wrong), (len(wrong), [hex(int(x[wrong[0]])) for x in (got, want)])


@pytest.mark.parametrize("name", ARM_EXTENDED)
def test_the_lab_has_the_bits_of_an_emulated_aarch64s_pairs_with_ebf(name, tmp_path):
    case, unit = cpu_cases.extended_on_arm(1 << 12), ARM_EXTENDED[name]
    given = case.inputs()
    operands = [cpu_cases.as_rows(x) for x in (given["a"], given["b"], given["c"][:, : unit.widths[2] // 4])]
    got = emulated(unit, operands, tmp_path)
    if version_of("qemu-aarch64") < (9, 2):
        pytest.skip("FPCR.EBF is emulated by QEMU from 9.2 on")
    want = case.emulate(given, {})[name].ravel()
    wrong = np.flatnonzero(got != want)
    assert not len(wrong), (len(wrong), [hex(int(x[wrong[0]])) for x in (got, want)])


@pytest.mark.parametrize("mode", RISCV_WIDENED)
def test_the_lab_has_the_bits_of_an_emulated_riscvs_widening_multiply_adds(mode, tmp_path):
    case = cpu_cases.widened_on_riscv(1 << 14)
    given = case.inputs()
    got, want = emulated(RISCV_WIDENED[mode], [*given.values()], tmp_path), case.emulate(given, {})[mode]
    wrong = np.flatnonzero(got != want)
    assert not len(wrong), [hex(int(x[wrong[0]])) for x in (*given.values(), got, want)]


def test_pairs_are_rounded_to_odd_not_to_nearest():
    """By hand: 1 + 2^-25 is odd's 1 + 2^-23, and a sum below the normal numbers is zero."""
    a, b, c = np.zeros((1, 8), np.uint16), np.zeros((1, 8), np.uint16), np.full((1, 4), 0x3F800000, np.uint32)
    a[0, 0], b[0, 0] = 0x3F80, 0x3300  # of BF16: 1, 2^-25
    d = cpu_cases.of_pairs_on_arm({"a": a, "b": b, "c": c})
    assert [hex(x) for x in d["bfdot"][0]] == ["0x3f800001", *["0x3f800000"] * 3]
    c[:] = 0x00000001
    assert cpu_cases.of_pairs_on_arm({"a": 0 * a, "b": b, "c": c})["bfmmla"].tolist() == [[0] * 4]


def test_a_tile_adds_even_and_odd_products_apart():
    """By hand: 1 and -1 meet at the end alone, beside products too small for either."""
    a, b = np.zeros((1, 32), np.uint16), np.zeros((1, 16, 16, 2), np.uint16)
    one, minus, tiny = 0x3F80, 0xBF80, 0x3300  # of BF16: 1, -1, 2^-25
    a[0, :] = one
    b[0, 0, :, 0], b[0, 0, :, 1] = one, minus  # k = 0, 1
    b[0, 1, :, 0] = tiny  # k = 2, lost beside 1; in one chain it would stay beside 0
    c = np.zeros((1, 16), np.uint32)
    assert cpu_cases.of_tiles(a, b, c).tolist() == [[0] * 16]
    b[0, 0] = 0
    assert cpu_cases.of_tiles(a, b, c).view(np.float32).tolist() == [[2.0**-25] * 16]


def test_a_tile_of_fp16_keeps_subnormal_operands_and_flushes_small_sums():
    """By hand, as the pseudocode of TDPFP16PS reads: FP16's subnormal numbers count, FP32's do not."""
    a, b = np.zeros((1, 32), np.uint16), np.zeros((1, 16, 16, 2), np.uint16)
    a[0, 0], b[0, 0, :, 0] = 0x0001, 0x3C00  # 2^-24, 1
    c = np.full((1, 16), 0x00000001, np.uint32)
    assert cpu_cases.of_tiles(a, b, c, "fp16").view(np.float32).tolist() == [[2.0**-24] * 16]
    assert cpu_cases.of_tiles(0 * a, b, c, "fp16").tolist() == [[0] * 16]


@pytest.mark.parametrize(("signs", "products"), [("ii", 1), ("iu", -255), ("ui", -255), ("uu", 65025)])
def test_tiles_of_integers_have_signs_of_their_own_and_wrap_around(signs, products):
    a, b = np.full((1, 16), 0xFFFFFFFF, np.uint32), np.full((1, 16, 16), 0xFFFFFFFF, np.uint32)
    c = np.full((1, 16), 0x7FFFFFFF, np.uint32)
    total = cpu_cases.of_integer_tiles(a, b, c, signs).astype(np.int64)
    assert total.tolist() == [[(0x7FFFFFFF + 64 * products) % 2**32] * 16]
