"""The compose file and the image are not run here; they are held to the commands, settings and files that are."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from migrations.run import ROLES
from tallystick.cli import app
from tallystick.settings import Settings

CHECKOUT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service.get("build") == "."}


def test_the_services_are_those_of_the_design() -> None:
    assert set(OURS) == {"migrate", "worker", "api", "scheduler", "tallystick"}
    assert set(COMPOSE["services"]) == {*OURS, "postgres", "kafka", "topic"}


@pytest.mark.parametrize("name", OURS)
def test_each_of_our_services_runs_a_command_that_there_is(name: str) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert OURS[name]["command"][0] in {*commands, "--help"}


def test_each_part_knows_the_addresses_that_it_logs_in_with_and_no_other() -> None:
    """Whoever breaks into the API or a worker must not find the password of the one that may make roles."""
    known = {
        name: {
            setting.removeprefix("TALLYSTICK_").removesuffix("_URL").lower()
            for setting in service["environment"]
            if setting.endswith("_URL")
        }
        for name, service in OURS.items()
    }
    assert known == {
        "migrate": {"database", "writer", "api", "operator", "analyst", "rollup"},
        "worker": {"writer"},
        "api": {"writer", "api"},
        "scheduler": {"operator", "rollup"},
        "tallystick": {"writer", "operator", "analyst", "rollup"},
    }


@pytest.mark.parametrize("name", OURS)
def test_each_setting_of_our_services_is_a_setting(name: str) -> None:
    known = {f"TALLYSTICK_{field.upper()}" for field in Settings.model_fields}
    assert set(OURS[name]["environment"]) <= known


NOT_FOR_COMPOSE = {
    "home": "stands in the image, on the volume",
    "heads_file": "lies in home",
    "retention_folder": "lies in home",
    "usage_topic": "is made by the service topic, under its default name",
    "usage_partitions": "is of the embedded broker",
    "consumer_group": "has no offsets in it",
    "kafka_session_seconds": "is at its default",
    "api_port": "is published as it is",
    "failpoints": "is for crash tests",
}


def test_every_setting_reaches_a_service() -> None:
    """A rule that nobody can set in production, such as a second person, is no rule."""
    reached = {name for service in OURS.values() for name in service["environment"]}
    wanted = {f"TALLYSTICK_{name.upper()}" for name in set(Settings.model_fields) - set(NOT_FOR_COMPOSE)}
    assert wanted <= reached
    assert set(NOT_FOR_COMPOSE) <= set(Settings.model_fields)
    assert not {f"TALLYSTICK_{name.upper()}" for name in NOT_FOR_COMPOSE} & reached


@pytest.mark.parametrize("setting", ["second_person", "grace_days", "months_ahead", "webhooks_allow_private", "fonts"])
def test_a_rule_is_the_same_wherever_it_is_asked_for(setting: str) -> None:
    """An act that needs two over HTTP and one by command would need one."""
    name = f"TALLYSTICK_{setting.upper()}"
    assert all(
        name in OURS[service]["environment"] and OURS[service]["environment"][name] is None
        for service in ("api", "scheduler", "tallystick")
    )


def test_what_must_outlive_a_container_lies_on_a_volume() -> None:
    """The API's journal, retired months and heads lie under the image's home folder, which is the volume `state`."""
    image_home = re.search(r"TALLYSTICK_HOME=(\S+)", (CHECKOUT / "Dockerfile").read_text())
    assert image_home is not None
    assert all(f"state:{image_home[1]}" in service["volumes"] for service in OURS.values())
    assert "state" in COMPOSE["volumes"]
    settings = Settings(home=Path(image_home[1]), heads_file=None, retention_folder=None)
    assert all(path.is_relative_to(image_home[1]) for path in (settings.published_heads, settings.exports))


def test_each_role_that_logs_in_has_its_own_password() -> None:
    urls = [value for value in OURS["migrate"]["environment"].values() if value.startswith("postgresql://tallystick_")]
    named = {match[1]: match[2] for url in urls if (match := re.match(r"postgresql://(\w+):\$\{(\w+)", url))}
    assert set(named) <= set(ROLES)
    assert len(set(named.values())) == len(named) >= 5


def test_each_variable_of_the_compose_file_has_an_example() -> None:
    wanted = set(re.findall(r"\$\{(\w+)", (CHECKOUT / "docker-compose.yml").read_text()))
    given = set(re.findall(r"^(\w+)=", (CHECKOUT / "docker-compose.env.example").read_text(), re.MULTILINE))
    assert wanted == given


def test_the_image_copies_what_there_is_and_every_room() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (CHECKOUT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert all((CHECKOUT / name).exists() for name in names)
    assert {"tallystick", "api", "ingest", "billing", "quotas", "ledger", "migrations", "dbt", "data"} <= names


def test_the_image_installs_dependencies_beside_a_stand_in_for_each_package() -> None:
    packages = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    stands_in = re.search(r"for package in (.+); do", (CHECKOUT / "Dockerfile").read_text())
    assert stands_in is not None
    assert {name.replace("/", ".") for name in stands_in[1].split()} == set(packages)
