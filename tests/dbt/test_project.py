"""The dbt project keeps the house rules: documented, keyed, tested, and its own unit tests pass."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.cli.main import dbtRunner

from tallystick.cookbook import questions, statement
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
    assert len(found) >= 12
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


def test_sums_stand_beside_the_requests_that_they_lack(manifest: Any) -> None:
    """Of what has no usage nobody knows the tokens, and of what has no price nobody knows the amount: neither is zero."""
    summed = {"input_tokens", "output_tokens", "generated_output_tokens", "token_count", "tokens_per_request"}
    for model in models(manifest):
        if model.name.startswith("fct_"):
            columns = {name.removesuffix("_overlapping") for name in model.columns}
            said = {"usage_missing_count", "cost_uncompared_tokens"} & columns
            assert said or not summed & columns, model.name
            for book in ("cost", "charge"):
                assert f"{book}_unpriced_count" in columns or f"{book}_amount" not in columns, model.name


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


def strategy(model: Any) -> str | None:
    return model.config.get("incremental_strategy")


def test_models_with_watermarks_are_never_made_anew_by_accident(manifest: Any) -> None:
    consuming = [model for model in models(manifest) if strategy(model) in {"additive", "recomputed"}]
    assert {"fct_usage_15min", "fct_usage_hourly", "fct_cost_daily"} <= {model.name for model in consuming}
    for model in consuming:
        assert model.config.full_refresh is False, model.name
        assert model.config.on_schema_change == "fail", model.name
        assert model.config.materialized == "incremental", model.name


def test_no_mart_has_hooks_of_its_own(manifest: Any) -> None:
    """A run that is repeated without dbt knows those that all marts have, and no others; see tallystick/steps.py."""
    for model in models(manifest):
        if layer(model) == "marts":
            before, after = model.config.pre_hook, model.config.post_hook
            assert [hook.sql for hook in before] == ["{{ lock_model() }}", "{{ open_batches() }}"], model.name
            assert [hook.sql for hook in after] == ["{{ close_batches() }}", "{{ make_reader_view() }}"], model.name


def test_recomputed_models_are_made_anew_by_a_part_of_their_key(manifest: Any) -> None:
    for model in models(manifest):
        if strategy(model) == "recomputed":
            assert set(model.config.meta["buckets"]) <= set(model.config.get("unique_key")), model.name


def test_the_usage_marts_are_held_to_a_second_writing_of_their_sums(manifest: Any) -> None:
    for name in ("fct_usage_15min", "fct_usage_hourly", "fct_cost_daily"):
        model = next(each for each in models(manifest) if each.name == name)
        assert "equals_ledger" in {test.test_metadata.name for test in attached_tests(manifest, model)}


# --- What dbt-project-evaluator looks for, as far as it fits ----------------------------------------------------------


def layer(model: Any) -> str:
    return str(model.fqn[1])


def parents(manifest: Any, model: Any, kind: str = "model") -> list[Any]:
    return [manifest.nodes[name] for name in model.depends_on.nodes if name.startswith(f"{kind}.")]


def sources_of(model: Any) -> set[str]:
    return {name for name in model.depends_on.nodes if name.startswith("source.")}


def test_a_model_is_named_and_filed_by_its_layer(manifest: Any) -> None:
    kinds = {"staging": ("stg_",), "intermediate": ("int_",), "marts": ("fct_", "dim_")}
    for model in models(manifest):
        assert model.name.startswith(kinds[layer(model)]), model.name
        assert len(model.fqn) == 4, f"{model.name} belongs into a folder of its subject"
        assert Path(model.patch_path.split("://")[1]).parent == Path(model.original_file_path).parent, model.name
        assert Path(model.patch_path).name.endswith("__models.yml"), model.name


def test_dependencies_go_one_way(manifest: Any) -> None:
    below = {
        "staging": set(),
        "intermediate": {"staging", "intermediate"},
        "marts": {"staging", "intermediate", "marts"},
    }
    for model in models(manifest):
        for parent in parents(manifest, model):
            assert layer(parent) in below[layer(model)], f"{model.name} reads {parent.name}"


def test_staging_is_one_to_one_with_its_sources(manifest: Any) -> None:
    staged: set[str] = set()
    for model in models(manifest):
        if layer(model) != "staging":
            continue
        assert len(model.depends_on.nodes) == 1, model.name
        (source,) = model.depends_on.nodes
        assert source.startswith("source."), model.name
        assert source not in staged, f"{source} is staged twice"
        staged.add(source)
        _, _, schema, table = source.split(".")
        assert model.name == f"stg_{schema}__{table}"


def test_only_staging_reads_sources(manifest: Any) -> None:
    """Besides what the rollup keeps about itself, the sieve of the readers' views, and rows that two marts look up by key, since
    new ones take their place: staging named twice in a statement would be read whole for each."""
    own = {"source.tallystick.marts.watermarks", "source.tallystick.ledger.own_tenants"}
    by_key = {f"source.tallystick.ledger.{table}" for table in ("entries", "batches", "batch_digests")}
    for model in models(manifest):
        if layer(model) != "staging":
            allowed = own | by_key if model.name in {"fct_latency_daily", "fct_meters_daily"} else own
            assert sources_of(model) <= allowed, model.name


def test_no_source_is_idle_and_no_model_is_without_parents(manifest: Any) -> None:
    macros = "".join(path.read_text() for path in (PROJECT / "macros").glob("*.sql"))
    read = {name for model in models(manifest) for name in sources_of(model)}
    for source in manifest.sources.values():
        named = f"source('{source.source_name}', '{source.name}')"
        assert source.unique_id in read or named in macros, source.unique_id
    for model in models(manifest):
        assert model.depends_on.nodes, model.name


def test_no_model_names_a_relation_by_hand(manifest: Any) -> None:
    by_hand = re.compile(r"\b(?:from|join)\s+(?:ledger|quotas|marts|public)\.\w+", re.IGNORECASE)
    for model in models(manifest):
        assert not by_hand.search(model.raw_code), model.name


def test_no_model_joins_what_its_parent_was_made_from(manifest: Any) -> None:
    """A mart that reads B, and C which is made from B alone for this mart alone: C belongs into it. Staging of the watermarks is
    read by each mart."""
    children: dict[str, set[str]] = {}
    for model in models(manifest):
        for parent in parents(manifest, model):
            children.setdefault(parent.unique_id, set()).add(model.unique_id)
    for model in models(manifest):
        direct = {parent.unique_id for parent in parents(manifest, model)}
        for parent in parents(manifest, model):
            of_parent = {each.unique_id for each in parents(manifest, parent)}
            rejoins = layer(parent) == "intermediate" and of_parent and of_parent <= direct
            assert not (rejoins and children[parent.unique_id] == {model.unique_id}), f"{model.name} and {parent.name}"


def test_each_mart_has_an_owner(manifest: Any) -> None:
    groups = {group.name: group for group in manifest.groups.values()}
    for model in models(manifest):
        if layer(model) == "marts":
            assert model.config.group in groups, model.name
            assert groups[model.config.group].owner.name, model.name


def test_what_is_public_is_a_contract_and_the_other_way_round(manifest: Any) -> None:
    for model in models(manifest):
        is_public = str(model.access) == "public"
        assert is_public == model.config.contract.enforced, model.name
        assert not is_public or layer(model) == "marts", model.name


def test_what_python_reads_is_public(manifest: Any) -> None:
    """A program that names a mart's column must not find it gone; the proofs name marts and stand in SQL files too."""
    public = {model.name for model in models(manifest) if str(model.access) == "public"}
    for room in ("tallystick", "api", "billing", "ingest", "quotas", "ledger"):
        for path in (PROJECT.parent / room).rglob("*"):
            if path.suffix in {".py", ".sql"}:
                named = set(re.findall(r"\bmarts\.((?:fct|dim)_\w+)", path.read_text()))
                assert named <= public, f"{path.relative_to(PROJECT.parent)} reads {named - public}"


def test_exposures_stand_on_public_marts_and_say_whose_they_are(manifest: Any) -> None:
    assert manifest.exposures
    for exposure in manifest.exposures.values():
        assert exposure.description, exposure.name
        assert exposure.owner.name, exposure.name
        assert exposure.depends_on.nodes, exposure.name
        for name in exposure.depends_on.nodes:
            model = manifest.nodes[name]
            assert layer(model) == "marts", f"{exposure.name} reads {model.name}"
            assert str(model.access) == "public", f"{exposure.name} reads {model.name}"


def test_every_public_mart_is_in_an_exposure(manifest: Any) -> None:
    """What is a contract has a reader who is named; with the rule above, whatever Python reads is in one."""
    exposed = {name for exposure in manifest.exposures.values() for name in exposure.depends_on.nodes}
    assert exposed == {model.unique_id for model in models(manifest) if str(model.access) == "public"}


def test_the_marts_that_the_cookbook_asks_are_its_exposure(manifest: Any) -> None:
    (cookbook,) = (exposure for exposure in manifest.exposures.values() if exposure.name == "cookbook")
    analyses = [node for node in manifest.nodes.values() if str(node.resource_type) == "analysis"]
    assert set(cookbook.depends_on.nodes) == {name for each in analyses for name in each.depends_on.nodes}


def test_the_marts_that_pages_name_in_statements_are_public(manifest: Any) -> None:
    public = {model.name for model in models(manifest) if str(model.access) == "public"}
    for page in [*(PROJECT.parent / "docs").glob("*.md"), *PROJECT.glob("*.md")]:
        named = set(re.findall(r"\b(?:from|join) marts\.((?:fct|dim)_\w+)", page.read_text()))
        assert named <= public, f"{page.name} reads {named - public}"


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


def test_what_a_mart_holds_is_described_with_its_types_where_it_is_a_contract(manifest: Any) -> None:
    for model in models(manifest):
        if model.config.contract.enforced:
            assert all(column.data_type for column in model.columns.values()), model.name


def test_the_projects_unit_tests_pass(database: Database, folder: Path) -> None:
    outcome = invoke(database.url_for("tallystick_rollup"), folder, "test", "--select", "test_type:unit")
    assert outcome.success, [result.message for result in outcome.result.results]
    ran = [result for result in outcome.result.results if str(result.node.resource_type) == "unit_test"]
    assert len(ran) >= 12


def test_the_cookbook_that_is_asked_without_dbt_is_what_dbt_compiles(database: Database, folder: Path) -> None:
    outcome = invoke(database.url_for("tallystick_rollup"), folder, "compile", "--select", "resource_type:analysis")
    assert outcome.success, outcome.exception
    compiled = {result.node.name: result.node.compiled_code for result in outcome.result.results}
    assert len(compiled) == len(questions())
    for each in questions():
        text = compiled[each.name.replace("-", "_")]
        assert re.sub(r'"\w+"\."marts"\."(\w+)"', r"marts.\1", text).strip() == statement(each.name, {}).strip(), (
            each.name
        )


def test_no_init_file_hides_the_tool(manifest: Any) -> None:
    assert not list(PROJECT.rglob("__init__.py"))
