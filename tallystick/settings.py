"""Settings: read here, from `TALLYSTICK_*`, and handed down. With none set, everything is embedded under `.tallystick/`."""

import os
import shlex
import socket
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

CHECKOUT = Path(__file__).parent.parent


class Settings(BaseSettings):
    """What an operator may set, each as `TALLYSTICK_` and the name in capitals."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_", extra="ignore")

    home: Path = Field(
        default=CHECKOUT / ".tallystick", description="Folder of the embedded stack: data, logs, addresses."
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="Postgres, as somebody who may make roles; only `migrate` logs in with it. Unset: embedded.",
    )
    writer_url: SecretStr | None = Field(
        default=None, description="Postgres as tallystick_writer: worker, events over HTTP."
    )
    api_url: SecretStr | None = Field(default=None, description="Postgres as tallystick_api: what the API reads.")
    operator_url: SecretStr | None = Field(
        default=None, description="Postgres as tallystick_operator: commands, scheduler."
    )
    analyst_url: SecretStr | None = Field(default=None, description="Postgres as tallystick_analyst: `tallystick sql`.")
    rollup_url: SecretStr | None = Field(default=None, description="Postgres as tallystick_rollup: dbt.")

    kafka: str | None = Field(
        default=None, description="Bootstrap servers, host:port,...; `up` and `demo` run a broker of their own."
    )
    usage_topic: str = Field(default="llm-usage", description="Topic of usage events.")
    usage_partitions: int = Field(
        default=2, ge=1, le=1000, description="Partitions of the topic where we make it (embedded only)."
    )
    consumer_group: str = Field(default="tallystick", description="Kafka group; offsets live in Postgres, not in it.")
    kafka_session_seconds: float = Field(
        default=10.0, gt=0, description="After this long a silent worker's partitions move on."
    )

    batch_events_max: int = Field(
        default=5000, ge=1, le=20_000, description="Events over HTTP that one transaction posts at most, about."
    )
    batch_bytes_max: int = Field(
        default=2 * 1024 * 1024,
        ge=1,
        description="Bytes of messages that one transaction of the worker posts at most, about.",
    )
    batch_wait_seconds: float = Field(
        default=0.1, ge=0, description="How long a batch that is not full waits for more."
    )
    message_bytes_max: int = Field(
        default=4 * 1024 * 1024, ge=1, description="A larger message or request body is refused."
    )

    api_host: str = Field(default="127.0.0.1", description="Address the API listens on.")
    api_port: int = Field(default=8787, ge=0, le=65_535, description="Port the API listens on; 0 takes a free one.")
    api_name: str = Field(
        default_factory=socket.gethostname, description="Names this replica's feed: one name, one process."
    )

    fonts: Path | None = Field(
        default=None,
        description="Folder of more fonts for printed documents: for scripts that those of ours lack.",
    )

    months_ahead: int = Field(
        default=3, ge=1, le=24, description="Months for which periods and partitions are made ahead."
    )
    grace_days: int = Field(
        default=3, ge=0, le=60, description="Days after a month's end in which late usage still enters it."
    )

    second_person: str = Field(
        default="",
        description="Acts that need a second person, by name or noun: corrections.reverse, corrections, ...; `approvals acts` lists them.",
    )

    decision_days: int = Field(
        default=35,
        ge=1,
        le=3660,
        description="Days for which refusals and other decisions are kept, and reservations that are over.",
    )
    rollup_seconds: float = Field(default=60.0, gt=0, description="The scheduler's pause between rollups.")
    heads_file: Path | None = Field(
        default=None, description="Where moved chain heads are appended; unset: home/heads.jsonl."
    )
    proof_seconds: float = Field(
        default=60.0, ge=0, description="The scheduler's pause between two standing proofs; 0 makes none."
    )
    check_seconds: float = Field(
        default=900.0, ge=0, description="The scheduler's pause between two checks of what arrived; 0 makes none."
    )
    check_hours: float = Field(
        default=1.0, gt=0, le=168, description="Hours before a scheduled check whose arrivals it looks at."
    )
    checks_file: Path | None = Field(
        default=None, description="YAML that sets expectations anew, by name; unset: as tallystick/arrivals has them."
    )
    verify_hour: int = Field(
        default=3,
        ge=-1,
        le=23,
        description="Hour of the day (UTC) from which on the scheduler proves everything, once a day; -1 never.",
    )
    canary_seconds: float = Field(
        default=0.0, ge=0, description="The scheduler's pause between synthetic events; 0 sends none."
    )
    canary_api: str | None = Field(
        default=None, description="Address of the API that the canary sends to; unset: over Kafka."
    )
    canary_key: SecretStr | None = Field(
        default=None, description="The key that it sends with, of the source canary://tallystick."
    )
    outbox_seconds: float = Field(
        default=5.0, gt=0, description="The scheduler's pause between two looks for webhooks to send."
    )
    webhook_age_hours: int = Field(
        default=72,
        ge=1,
        le=24 * 30,
        description="A webhook nobody took for so long is given up; a receiver that took none is disabled.",
    )
    webhooks_allow_private: bool = Field(
        default=False, description="Let webhooks go to private addresses, and without TLS: for networks of one's own."
    )
    retention_folder: Path | None = Field(
        default=None, description="Where months that leave the ledger are exported to; unset: home/retired."
    )
    raw_usage_months: int = Field(
        default=6,
        ge=1,
        le=120,
        description="Months for which raw usage objects are kept, beside the one in hand; then their partition is dropped.",
    )
    dead_letter_days: int = Field(
        default=90, ge=1, le=3650, description="Days for which a resolved dead letter keeps its bytes."
    )
    open_dead_letter_days: int = Field(
        default=400,
        ge=1,
        le=3650,
        description="Days since it last came for which a dead letter that nobody resolved keeps its bytes.",
    )
    load_days: int = Field(
        default=90, ge=1, le=3650, description="Days after its commit or revert for which a load keeps its staged rows."
    )
    failpoints: str = Field(default="", description="For crash tests: place=die@n,...")

    @property
    def second_person_acts(self) -> list[str]:
        """The names that `second_person` lists."""
        return [name.strip() for name in self.second_person.split(",") if name.strip()]

    @property
    def published_heads(self) -> Path:
        """The file that heads are published to."""
        return self.heads_file or self.home / "heads.jsonl"

    @property
    def checks_page(self) -> Path:
        """The page of the last check."""
        return self.home / "checks.html"

    @property
    def exports(self) -> Path:
        """The folder that months are exported to."""
        return self.retention_folder or self.home / "retired"


def editor() -> list[str]:
    """Return the command of the person's editor, as the shell knows it."""
    return shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")


def child_environment(**values: str) -> dict[str, str]:
    """Return our environment for a child process, with settings of ours in it: `kafka="..."` becomes TALLYSTICK_KAFKA."""
    return {**os.environ, **{f"TALLYSTICK_{name.upper()}": value for name, value in values.items()}}
