"""The commands `sluice tenants ...`: members are altered, described and imported, and what is wrong is refused."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from tests.builders import file_of, member, quota
from tests.commands import invoke

PRODUCE = QuotaKind.PRODUCER_BYTE_RATE


def of_tenant(tenant: Any, value: float, kind: QuotaKind = PRODUCE, shadow: bool = False) -> QuotaEntry:
    return quota(kind, value, tenant=tenant, shadow=shadow)


def of_user(user: str, value: float, kind: QuotaKind = PRODUCE) -> QuotaEntry:
    return quota(kind, value, user=user)


def lines(*arguments: object) -> list[str]:
    return invoke(*arguments).output.splitlines()


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    path = str(tmp_path / "quotas")
    QuotasTable(path).create([], "seed", datetime(2026, 1, 1, tzinfo=UTC))
    return ["--table", path]


def test_a_tenant_is_altered_described_and_resolved(table: list[str]) -> None:
    by = ["--as", "carol", *table]

    assert lines("tenants", "alter", "shop", "--add-user", "shop-*", "--add-client-id", "web", *by) == [
        "+ tenant 'shop': member client-id 'web'",
        "+ tenant 'shop': member user 'shop-*'",
        "Quotas are now at version 1.",
    ]
    lines("quotas", "alter", "--tenant", "shop", "--add-config", "producer_byte_rate=1000", "--yes", *by)
    lines("quotas", "alter", "--tenant-defaults", "--add-config", "producer_byte_rate=50", "--yes", *by)
    assert lines("tenants", "describe", *table) == [
        "the default tenant: no members; producer_byte_rate=50.0",
        "tenant 'shop': client-id 'web', user 'shop-*'; producer_byte_rate=1000.0",
    ]
    assert lines("tenants", "resolve", "--user", "shop-7", "--client-id", "web", *table) == [
        "tenant 'shop', by user 'shop-*'",
        "  passed over tenant 'shop', by client-id 'web'",
        "producer_byte_rate: 1000.0 from tenant 'shop', counted for tenant 'shop'",
        "  passed over the default tenant: 50.0",
    ]
    assert lines("tenants", "resolve", "--user", "eve", *table) == ["in no tenant"]
    assert lines("quotas", "resolve", "--user", "shop-7", *table)[:2] == [
        "producer_byte_rate: unlimited, not counted",
        "producer_byte_rate: 1000.0 from tenant 'shop', counted for tenant 'shop'",
    ]
    lines("tenants", "alter", "shop", "--remove-user", "shop-*", *by)
    history = lines("quotas", "history", "--tenant", "shop", *table)
    assert [line.split("  ")[-1] for line in history] == [
        "- tenant 'shop': member user 'shop-*'",
        "+ tenant 'shop': producer_byte_rate 1000",
        "+ tenant 'shop': member client-id 'web'",
        "+ tenant 'shop': member user 'shop-*'",
    ]


def test_where_kafka_says_the_quotas_tenants_are_still_altered_and_pruned_here(tmp_path: Path) -> None:
    table, settings, file = QuotasTable(str(tmp_path / "quotas")), tmp_path / "settings.yaml", tmp_path / "tenants.yaml"
    table.create([of_user("alice", 5.0)], "kafka", datetime(2026, 1, 1, tzinfo=UTC))
    settings.write_text(f"quotas: {{source: kafka}}\ndelta: {{quotas: {table.path}}}\n")
    file.write_text("[{tenant: bank, users: [bank-*]}]")
    by = ["--as", "carol", "--config", settings]

    lines("tenants", "alter", "shop", "--add-user", "shop-*", *by)
    lines("quotas", "alter", "--tenant", "shop", "--add-config", "producer_byte_rate=1000", "--yes", *by)
    assert set(table.entries()) == {of_user("alice", 5.0), member("shop", user="shop-*"), of_tenant("shop", 1000.0)}

    lines("tenants", "import", file, "--prune", "--yes", *by)
    assert set(table.entries()) == {of_user("alice", 5.0), member("bank", user="bank-*")}


def test_topics_are_members_that_count_for_the_budget_of_their_tenant(table: list[str]) -> None:
    by = ["--as", "carol", *table]

    assert lines("tenants", "alter", "shop", "--add-topic", "shop.*", *by) == [
        "+ tenant 'shop': member topic 'shop.*'",
        "Quotas are now at version 1.",
    ]
    lines("quotas", "alter", "--tenant", "shop", "--add-config", "stored_bytes=1000", *by)
    assert lines("tenants", "describe", *table) == ["tenant 'shop': topic 'shop.*'; stored_bytes=1000.0"]
    assert lines("tenants", "resolve", "--topic", "shop.orders", *table) == [
        "tenant 'shop', by topic 'shop.*'",
        "stored_bytes: 1000.0, of all topics of tenant 'shop'",
    ]
    assert lines("tenants", "resolve", "--topic", "orders", *table) == ["in no tenant"]
    assert json.loads("".join(lines("tenants", "resolve", "--topic", "shop.orders", "--json", *table))) == {
        "tenant": "shop",
        "members": [{"topic": "shop.*", "tenant": "shop"}],
        "quotas": [],
        "stored_bytes": 1000.0,
    }
    removed = lines("tenants", "alter", "shop", "--remove-topic", "shop.*", *by)
    assert removed[0] == "- tenant 'shop': member topic 'shop.*'"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["tenants", "alter", "bank", "--add-user", "shop-1"], "tenant 'shop'"),
        (["tenants", "alter", "bank", "--add-user", "shop-1", "--dry-run"], "tenant 'bank'"),
        (["tenants", "alter", "bank", "--remove-user", "x"], "tenant 'bank' has no member user 'x'"),
        (["tenants", "alter", "bank"], "nothing to alter"),
        (["tenants", "alter", "b" * 257, "--add-user", "x"], "expected at most 256"),
        (["tenants", "alter", "", "--add-user", "x"], "name is empty"),
        (["tenants", "describe", "bank"], "there is no tenant 'bank'"),
        (["tenants", "resolve"], "--topic"),
        (["tenants", "resolve", "--user", "shop-1", "--topic", "x"], "--topic"),
        (["quotas", "alter", "--tenant", "shop", "--user", "x", "--add-config", "member=1"], "can't be combined"),
        (["quotas", "alter", "--tenant", "shop", "--add-config", "member=1"], "on a tenant"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_and_changes_nothing(
    table: list[str], arguments: list[str], problem: str
) -> None:
    lines("tenants", "alter", "shop", "--add-user", "shop-*", "--as", "carol", *table)
    author = ["--as", "carol"] if "alter" in arguments else []

    assert problem in invoke(*arguments, *author, *table, code=2).error_line
    assert QuotasTable(table[1]).version() == 1


def test_limits_of_a_tenant_without_members_are_taken_with_a_hint(table: list[str]) -> None:
    """They may be set before its members are; more often the name is wrong."""
    by = ["--as", "carol", *table]
    lines("tenants", "alter", "shop", "--add-user", "shop-*", *by)
    limit = ["--add-config", "producer_byte_rate=5", "--yes", *by]

    dry = invoke("quotas", "alter", "--tenant", "shpo", "--dry-run", *limit)
    wrong = invoke("quotas", "alter", "--tenant", "shpo", *limit)
    right = invoke("quotas", "alter", "--tenant", "shop", *limit)
    default = invoke("quotas", "alter", "--tenant-defaults", *limit)
    removed = invoke("quotas", "alter", "--tenant", "shpo", "--delete-config", "producer_byte_rate", *by)

    assert wrong.output == "Completed updating config for tenant shpo.\n"
    hint = "tenant 'shpo' has no members; did you mean 'shop'? `sluice tenants alter shpo --add-user NAME` adds one"
    assert [hint in ended.error for ended in (dry, wrong)] == [True, True]
    assert "no members" not in right.error + default.error + removed.error


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[{tenant: a, user: b}]", "unknown key 'user'; did you mean users?"),
        ("[{tenant: 7, users: [a]}]", "tenant is 7"),
        ("[{tenant: a}]", "no users, client_ids, topics or quotas"),
        ("[{tenant: a, users: b}]", "users is 'b'"),
        ("[{tenant: a, users: []}]", "users is"),
        ("[{tenant: a, users: [x], entity: {user: b}}]", "comes with entity"),
        ("[{tenant: null, users: [x]}]", "a tenant's member is <default>"),
        ("[{tenant: a, users: [x]}, {tenant: b, users: ['*']}]", "tenant 'b' is in tenant 'a' too"),
        ("[{tenant: a, quotas: {producer_byte_rate: 1}}, {tenant: a, quotas: {producer_byte_rate: 2}}]", "already in"),
    ],
)
def test_a_wrong_file_of_tenants_is_refused(table: list[str], tmp_path: Path, content: str, problem: str) -> None:
    file = file_of(tmp_path / "tenants.yaml", content)

    said = invoke("tenants", "import", file, "--as", "carol", *table, code=2).error_line

    assert problem in said.replace("tenant 'a' is in tenant 'b'", "tenant 'b' is in tenant 'a'")


def test_an_import_of_tenants_asks_first(table: list[str], tmp_path: Path) -> None:
    """As the other commands do that take a file; --prune alone could remove all tenants."""
    file = file_of(tmp_path / "tenants.yaml", "[{tenant: shop, users: [shop-*]}]")
    by = ["--as", "carol", *table]
    lines("tenants", "alter", "bank", "--add-user", "bank-*", *by)
    changes = ["- tenant 'bank': member user 'bank-*'", "+ tenant 'shop': member user 'shop-*'"]

    refused = invoke("tenants", "import", file, "--prune", *by, answer="n\n", code=130)
    invoke("tenants", "import", file, "--prune", *by, code=2)

    assert refused.output.splitlines()[:2] == changes
    assert QuotasTable(table[1]).version() == 1
    assert lines("tenants", "import", file, "--prune", "--yes", *by) == [*changes, "Quotas are now at version 2."]


def test_an_empty_file_of_tenants_prunes_nothing_unless_it_says_so(table: list[str], tmp_path: Path) -> None:
    file, by = file_of(tmp_path / "tenants.yaml", "# all is commented out\n"), ["--as", "carol", *table]
    lines("tenants", "alter", "bank", "--add-user", "bank-*", *by)

    refused = invoke("tenants", "import", file, "--prune", "--yes", *by, code=2)

    assert refused.error_line.endswith(
        "is empty, and --prune would remove all of them; write [] into it if that is meant"
    )
    assert QuotasTable(table[1]).version() == 1
    file_of(tmp_path / "tenants.yaml", "[]\n")
    assert lines("tenants", "import", file, "--prune", "--yes", *by)[0] == "- tenant 'bank': member user 'bank-*'"


@pytest.mark.parametrize("tenants", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_tenants_are_imported_in_2_ms_each(table: list[str], tmp_path: Path, tenants: int) -> None:
    """Each with a glob, two users and a limit; an import without a tenant removes it with --prune."""
    file = tmp_path / "tenants.yaml"
    file.write_text(
        "".join(
            f"- {{tenant: t{number}, users: [t{number}-*, u{number}, v{number}],"
            f" quotas: {{producer_byte_rate: {number + 1}}}}}\n"
            for number in range(tenants)
        )
    )
    start = time.process_time()

    lines("tenants", "import", file, "--yes", "--as", "carol", *table)

    assert time.process_time() - start < 0.002 * tenants
    entries = QuotasTable(table[1]).entries()
    assert len(entries) == 4 * tenants
    start = time.process_time()
    quotas = Quotas(entries)
    for number in range(tenants):
        (found,) = quotas.resolve_all(PRODUCE, f"t{number}-new", "app")
        assert found.limit == number + 1
    assert time.process_time() - start < 0.001 * tenants
    file.write_text("[{tenant: t1, users: [u1]}]")
    lines("tenants", "import", file, "--prune", "--yes", "--as", "carol", *table)
    assert QuotasTable(table[1]).entries() == [member("t1", user="u1")]
