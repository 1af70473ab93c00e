"""Every known deviation of a profile is a finding with a file, and every finding is a known deviation."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract import replay_file
from contract.profile import PROFILES
from contract.rules import RULES

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "findings").glob("*.json"))
BASELINE = {deviation.signature for profile in PROFILES.values() for deviation in profile.deviations}


def test_every_deviation_has_its_file():
    assert {replay_file.read(path).signature for path in FILES} == BASELINE


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_finding_is_in_the_page(path):
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert f"## {path.stem}\n" in page
    assert f"(findings/{path.name})" in page


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_finding_names_a_rule_and_a_baseline_entry(path):
    finding = replay_file.read(path)
    assert finding.rule in RULES
    assert any(
        (deviation.rule, deviation.signature) == (finding.rule, finding.signature)
        for profile in PROFILES.values()
        for deviation in profile.deviations
    )


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_deviation_names_a_rule_and_its_reason(profile):
    for deviation in profile.deviations:
        assert deviation.rule in RULES
        assert deviation.signature
        assert deviation.reason
