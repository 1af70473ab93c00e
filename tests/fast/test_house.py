"""The house: what the files around the code promise."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest

from contract.rules import RULES
from contract.verdicts import Verdict

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
PAGES = sorted((ROOT / "docs").glob("*.md"))
TWO_COMMANDS = (
    "python3 -m venv .venv && .venv/bin/pip install -qe . && .venv/bin/broker-contract run",
    "python3 -m venv .venv && .venv/bin/pip install -qe '.[test]' && .venv/bin/pytest -n auto",
)


@pytest.fixture(scope="module")
def generate():
    return runpy.run_path(str(ROOT / "docs" / "generate.py"))


@pytest.mark.parametrize("line", TWO_COMMANDS)
def test_the_readme_has_its_two_commands(line):
    assert line in README.splitlines()


def test_ci_runs_the_lines_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    assert "readme_line 'broker-contract run'" in script
    assert "readme_line 'pytest -n auto'" in script


def test_the_ci_script_can_be_run():
    path = ROOT / ".ci" / "run"
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_the_version_has_an_entry_in_the_changelog():
    assert f"## [{PROJECT['project']['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_entry_point_has_the_name_of_its_module():
    assert PROJECT["project"]["entry-points"]["pytest11"] == {"broker_contract_pytest": "broker_contract_pytest"}


def test_the_wheel_holds_every_package_of_the_layout():
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["client", "strategies", "contract", "reference_broker", "broker_contract_pytest.py"]


def test_extras_that_say_the_same_agree():
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras["official-client"]) <= set(extras["test"])


def test_the_page_of_rules_is_generated(generate):
    fresh = generate["run"]("broker-contract rules --markdown")
    assert generate["RULES"].read_text() == fresh, "out of date: run python docs/generate.py"


def test_outputs_in_the_readme_are_those_of_the_commands(generate):
    assert generate["readme"](README) == README, "out of date: run python docs/generate.py"


def test_the_shape_of_an_output_leaves_figures_out(generate):
    shape = generate["shape"]
    assert shape(" order  5  PASS  48,930\n") == shape(" order  4  PASS 3, NOT EXERCISED 1   7\n\n never reached: x\n")


def test_the_shape_of_an_output_leaves_the_counts_of_the_last_line_out(generate):
    shape = generate["shape"]
    assert shape("0 violated, 38 held, 2 not exercised   exit 0\n") == shape("0 violated, 40 held   exit 0\n")


def test_the_shape_of_an_output_keeps_verdicts(generate):
    shape = generate["shape"]
    assert shape(" order  5  PASS  48,930\n") != shape(" order  5  FAIL 1, PASS 4  48,930\n")


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_is_explained(verdict):
    assert f"| {verdict} |" in (ROOT / "docs" / "verdicts.md").read_text()


@pytest.mark.parametrize("code", [0, 1, 2])
def test_every_exit_code_is_explained(code):
    assert f"| {code} |" in (ROOT / "docs" / "verdicts.md").read_text()


def test_every_reason_of_a_skip_is_explained():
    page = (ROOT / "docs" / "verdicts.md").read_text()
    sources = [*(ROOT / "contract").glob("*.py"), *(ROOT / "contract" / "checks").glob("*.py")]
    reasons = {
        reason for source in sources for reason in re.findall(r"\.skip\(\s*[^,()]+,\s*\"([^\"]+)\"", source.read_text())
    }
    assert reasons
    assert not [reason for reason in reasons if f"| {reason} |" not in page]


def test_every_rule_has_an_entry():
    page = (ROOT / "docs" / "rules.md").read_text()
    assert re.findall(r"^### (.+)$", page, re.MULTILINE) == list(RULES)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_programs_that_the_pages_name_exist(page):
    assert not [name for name in re.findall(r"python (\S+\.py)", page.read_text()) if not (ROOT / name).exists()]
