"""The dbt project keeps the house rules: documented, keyed, tested, and its own unit tests pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.cli.main import dbtRunner

from tallystick.rollup import PROJECT, _connection_in_environment
from tests.support.databases import Database


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dbt-project")


def invoke(url: str, folder: Path, *command: str) -> Any:
    with _connection_in_environment(url):
        return dbtRunner().invoke(
            [
                *command, "--project-dir", str(PROJECT), "--profiles-dir", str(PROJECT), "--log-level", "none",
                "--target-path", str(folder), "--log-path", str(folder), "--no-send-anonymous-usage-stats",
                "--no-version-check",
                # A subject's folder has its lines in dbt_project.yml before its first mart.
                "--warn-error-options", '{"error": "all", "warn": ["UnusedResourceConfigPath"]}',
            ]
        )  # fmt: skip


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Any:
    """Parsed with warnings as errors, so that nothing deprecated stays."""
    outcome = invoke("postgresql://tallystick_rollup@/nowhere", folder, "parse")
    assert outcome.success, outcome.exception
    return outcome.result


def models(manifest: Any) -> Iterator[Any]:
    found = [node for node in manifest.nodes.values() if str(node.resource_type) == "model"]
    assert len(found) == 12
    yield from found


def attached_tests(manifest: Any, model: Any) -> list[Any]:
    return [
        node
        for node in manifest.nodes.values()
        if str(node.resource_type) == "test" and getattr(node, "attached_node", None) == model.unique_id
    ]


def test_each_model_opens_its_description_with_its_grain(manifest: Any) -> None:
    for model in models(manifest):
        assert model.description.startswith("One row per "), model.name


def test_each_column_of_each_model_is_described(manifest: Any) -> None:
    for model in models(manifest):
        assert model.columns, model.name
        for column in model.columns.values():
            assert column.description.strip(), f"{model.name}.{column.name}"


def test_each_source_is_described(manifest: Any) -> None:
    for source in manifest.sources.values():
        assert source.description, source.name


def test_each_mart_has_a_key_and_tests_that_hold_it(manifest: Any) -> None:
    for model in models(manifest):
        if "marts" not in model.fqn:
            continue
        key = model.config.get("unique_key")
        assert key, model.name
        attached = [test.test_metadata for test in attached_tests(manifest, model)]
        whole = [test.kwargs["columns"] for test in attached if test.name == "one_row_per"]
        single = {(test.name, test.kwargs.get("column_name")) for test in attached}
        assert whole == [key] or {("unique", key[0]), ("not_null", key[0])} <= single, model.name


def test_additive_models_are_never_made_anew_by_accident(manifest: Any) -> None:
    additive = [model for model in models(manifest) if model.config.get("incremental_strategy") == "additive"]
    assert {model.name for model in additive} == {"fct_usage_15min", "fct_usage_hourly", "fct_cost_daily"}
    for model in additive:
        assert model.config.full_refresh is False
        assert model.config.on_schema_change == "fail"
        assert "equals_ledger" in {test.test_metadata.name for test in attached_tests(manifest, model)}


def test_what_people_and_python_read_is_a_contract(manifest: Any) -> None:
    enforced = {model.name for model in models(manifest) if model.config.contract.enforced}
    assert enforced == {"fct_cost_daily"}


def test_names_say_what_a_model_is_and_dependencies_go_one_way(manifest: Any) -> None:
    kinds = {"staging": "stg_", "intermediate": "int_", "marts": ("fct_", "dim_")}
    for model in models(manifest):
        kind = model.fqn[1]
        assert model.name.startswith(kinds[kind]), model.name
        for parent in model.depends_on.nodes:
            is_source = parent.startswith("source.tallystick.ledger")
            assert is_source or kind != "staging", f"{model.name} reads {parent}"


def test_singular_tests_say_what_they_assume_and_what_is_lost(manifest: Any) -> None:
    singular = sorted((PROJECT / "tests" / "singular").glob("*.sql"))
    assert singular
    for path in singular:
        text = path.read_text()
        assert text.startswith("-- Assumption: "), path.name
        assert "\n-- Money lost: " in text, path.name


def test_sql_is_in_lower_case_and_ends_with_a_bare_select(manifest: Any) -> None:
    for path in (PROJECT / "models").rglob("*.sql"):
        last = path.read_text().rstrip().splitlines()[-1]
        assert last.startswith("select * from "), path.name


def test_the_projects_unit_tests_pass(database: Database, folder: Path) -> None:
    outcome = invoke(database.url_for("tallystick_rollup"), folder, "test", "--select", "test_type:unit")
    assert outcome.success, [result.message for result in outcome.result.results]
    ran = [result for result in outcome.result.results if str(result.node.resource_type) == "unit_test"]
    assert len(ran) == 2


def test_no_init_file_hides_the_tool(manifest: Any) -> None:
    assert not list(PROJECT.rglob("__init__.py"))
