"""What all reports of a run can do: be saved as a table, JSON and text, the numbers in full."""

import csv
import io
import json

import pytest
import torch
from torch import nn
from watched import step

from fplab.nn import emulate, shadow, watch


@pytest.fixture(scope="module")
def reports():
    """Of one training run under all three blocks, by the name of their files."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=1) as seen, emulate("H100", inputs="fp16") as emulation, shadow() as exact:
        for _ in range(2):
            step(optimizer, nn.functional.cross_entropy(model(torch.randn(6, 8)), torch.arange(6) % 3))
    return {"watch": seen.report(), "emulate": emulation.report(), "shadow": exact.report()}


@pytest.mark.parametrize("name", ["watch", "emulate", "shadow"])
def test_files_hold_the_rows_and_the_text(reports, name, tmp_path):
    report = reports[name]
    report.save(tmp_path)
    assert {p.suffix for p in tmp_path.iterdir()} == {".csv", ".html", ".json", ".txt"} | (
        {".png"} if name == "watch" else set()
    )
    assert (tmp_path / f"{name}.txt").read_text() == f"{report}\n"
    table = list(csv.DictReader(io.StringIO((tmp_path / f"{name}.csv").read_text())))
    held = json.loads((tmp_path / f"{name}.json").read_text())
    assert [line["layer"] for line in table] == [row.layer for row in report.rows]
    assert [line["layer"] for line in held["rows"]] == [row.layer for row in report.rows]


def test_the_numbers_are_those_of_the_reports(reports):
    read = {name: list(csv.DictReader(io.StringIO(report.csv()))) for name, report in reports.items()}
    held = {name: json.loads(report.json()) for name, report in reports.items()}
    for line, fates, row in zip(read["watch"], held["watch"]["rows"], reports["watch"].rows, strict=True):
        assert int(line["e4m3 vanish"]) == fates["fates"]["e4m3"]["vanish"] == row.fates["e4m3"].vanish
    assert held["watch"]["advice"] == list(reports["watch"].advice)
    assert [float(line["effect"]) for line in read["shadow"]] == [row.effect for row in reports["shadow"].rows]
    assert held["shadow"]["rest"] == reports["shadow"].rest
    assert [int(line["count"]) for line in read["emulate"]] == [row.count for row in reports["emulate"].rows]
    assert [row["shape"]["k"] for row in held["emulate"]["rows"]] == [row.shape.k for row in reports["emulate"].rows]
