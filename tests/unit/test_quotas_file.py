"""Quota files: what is read, and what is refused with the place and the reason."""

import re
from pathlib import Path

import pytest

from sluice.configs.errors import InvalidSettingsError
from sluice.configs.quotas import load_quotas_file
from sluice.configs.settings import DEFAULTS
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry, check_value, quota_kind
from sluice.state.quotas.kinds import CLIENT_KINDS, PROXY_KINDS, QuotaKind
from sluice_reading.quota_text import quotas_yaml

ALICE = QuotaEntity(user="alice")


def quotas_file(folder: Path, text: str) -> Path:
    path = folder / "quotas.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_quota_of_the_list_is_read_in_order(tmp_path: Path) -> None:
    text = """
        - entity: {user: alice, client_id: app}
          quotas: {request_percentage: 1, producer_byte_rate: 1024}
        - {entity: {client-id: app}, mode: shadow, quotas: {controller_mutation_rate: 0.5}}
        - {entity: {topic: orders}, mode: enforce, quotas: {producer.byte.rate: 1e6}}
    """
    alice_app = QuotaEntity(user="alice", client_id="app")

    assert load_quotas_file(quotas_file(tmp_path, text)) == [
        QuotaEntry(alice_app, QuotaKind.REQUEST_PERCENTAGE, 1.0),
        QuotaEntry(alice_app, QuotaKind.PRODUCER_BYTE_RATE, 1024.0),
        QuotaEntry(QuotaEntity(client_id="app"), QuotaKind.CONTROLLER_MUTATION_RATE, 0.5, shadow=True),
        QuotaEntry(QuotaEntity(topic="orders"), QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1_000_000.0),
    ]


@pytest.mark.parametrize("name", ["null", "~", "<default>", "'<default>'"])
def test_null_and_default_name_the_default_entity(tmp_path: Path, name: str) -> None:
    (quota,) = load_quotas_file(
        quotas_file(tmp_path, f"- {{entity: {{user: {name}}}, quotas: {{request_percentage: 1}}}}")
    )

    assert quota.entity == QuotaEntity(user=DEFAULT)


def test_the_names_of_the_proposals_are_accepted(tmp_path: Path) -> None:
    text = "- {entity: {user: alice}, quotas: {request_time_percent: 1, controller_mutations_rate: 2}}"

    kinds = [quota.kind for quota in load_quotas_file(quotas_file(tmp_path, text))]

    assert kinds == [QuotaKind.REQUEST_PERCENTAGE, QuotaKind.CONTROLLER_MUTATION_RATE]


def test_names_that_yaml_would_change_stay_as_written(tmp_path: Path) -> None:
    text = "- {entity: {user: no, client_id: 0123}, quotas: {request_percentage: 1}}"

    assert load_quotas_file(quotas_file(tmp_path, text))[0].entity == QuotaEntity(user="no", client_id="0123")


@pytest.mark.parametrize("text", ["", "# no quotas\n", "[]"])
def test_an_empty_file_has_no_quotas(tmp_path: Path, text: str) -> None:
    assert load_quotas_file(quotas_file(tmp_path, text)) == []


def test_the_sample_shows_every_kind_of_quota_and_of_client_level() -> None:
    quotas = load_quotas_file(DEFAULTS.parent / "quotas.yaml")
    entities = {tuple(sorted(quota.entity.to_mapping())) for quota in quotas}

    assert {quota.kind for quota in quotas} == set(QuotaKind) - set(PROXY_KINDS)
    assert entities == {("user",), ("client_id",), ("client_id", "user"), ("topic",)}
    assert {quota.entity for quota in quotas} >= {QuotaEntity(user=DEFAULT), QuotaEntity(client_id=DEFAULT)}
    assert any(quota.shadow for quota in quotas)


def of_user(quotas: str) -> str:
    """An entry with these quotas of one user."""
    return f"- {{entity: {{user: a}}, quotas: {{{quotas}}}}}"


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("a: 1", "bad_file", ": not a list; expected entries such as - entity: {user: alice}"),
        ("- alice", "bad_entry", "[0]: 'alice' is not an entry; expected entity: and quotas:"),
        ("- {user: a, quotas: {}}", "bad_entry", "[0]: user is part of an entity; expected entity: {user: ...}"),
        ("- {entities: {user: a}}", "bad_entry", "[0]: unknown key 'entities'; did you mean entity?"),
        ("- {quotas: {request_percentage: 1}}", "bad_entity", "[0]: entity is missing; expected a mapping such as"),
        ("- {entity: alice, quotas: {a: 1}}", "bad_entity", "[0]: entity is 'alice'; expected a mapping such as"),
        ("- {entity: {group: a}, quotas: {a: 1}}", "unknown_entity_type", "[0]: unknown entity type 'group'; expected"),
        ("- {entity: {client-id: a, client_id: b}, quotas: {a: 1}}", "duplicate_part", "[0]: client-id and client_id"),
        ("- {entity: {user: ''}, quotas: {a: 1}}", "empty_name", "[0]: an entity name is empty; expected"),
        ("- {entity: {user: a, topic: b}, quotas: {a: 1}}", "topic_combined", "[0]: a topic can't be combined with"),
        ("- {entity: {user: 7}, quotas: {a: 1}}", "bad_name", "[0]: user is 7; expected a string or null"),
        (
            "- {entity: {user: a}, mode: b, quotas: {a: 1}}",
            "bad_mode",
            "[0]: mode is 'b'; expected one of enforce, shadow",
        ),
        ("- {entity: {user: a}}", "bad_quotas", "[0]: quotas is missing; expected a mapping such as"),
        (
            "- {entity: {topic: a}, quotas: {producer_byte_rate: 1}}",
            "unknown_key",
            "[0]: producer_byte_rate is no key of a topic; did you mean producer.byte.rate?",
        ),
        (of_user(""), "bad_quotas", "[0]: quotas is {}; expected a mapping such as"),
        (
            of_user("producer_byte_rat: 1"),
            "unknown_key",
            "[0]: unknown quota key 'producer_byte_rat'; did you mean producer_byte_rate? expected one of",
        ),
        (
            "- {entity: {topic: a}, quotas: {producer_byte_rat: 1}}",
            "unknown_key",
            "[0]: unknown quota key 'producer_byte_rat'; did you mean producer.byte.rate? expected one of",
        ),
        (of_user("producer.byte.rate: 1"), "unknown_key", "[0]: producer.byte.rate is no key of users"),
        (
            of_user("request_percentage: 1, request_time_percent: 2"),
            "duplicate_key",
            "[0]: request_percentage and request_time_percent are the same quota; expected one",
        ),
        (of_user("request_percentage: '1'"), "not_a_number", "[0]: request_percentage is '1'; e"),
        (of_user("request_percentage: true"), "not_a_number", "[0]: request_percentage is True"),
        (of_user("request_percentage: null"), "not_a_number", "[0]: request_percentage is None"),
        (of_user("request_percentage: 0"), "not_positive", "[0]: request_percentage is 0; exp"),
        (of_user("request_percentage: .nan"), "not_finite", "[0]: request_percentage is nan; e"),
        (of_user("request_percentage: 1e999"), "not_finite", "[0]: request_percentage is inf;"),
        (of_user("request_percentage: " + "9" * 400), "too_large", "[0]: request_percentage"),
        (of_user("producer_byte_rate: 1.5"), "fractional", "[0]: producer_byte_rate is 1.5; exp"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(tmp_path: Path, text: str, reason: str, message: str) -> None:
    path = quotas_file(tmp_path, text)

    with pytest.raises(InvalidQuotaError, match="^" + re.escape(f"{path}{message}")) as caught:
        load_quotas_file(path)

    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "places"),
    [
        (
            [
                "{entity: {user: alice, client_id: null}, quotas: {request_percentage: 1}}",
                "{entity: {user: bob}, quotas: {request_percentage: 1}}",
                "{entity: {client_id: <default>, user: alice}, quotas: {producer_byte_rate: 1}}",
            ],
            r"\[2\]: the entity.*already in .*\[0\]",
        ),
        (
            [f"{{entity: {{user: alice}}, mode: shadow, quotas: {{request_percentage: {n}}}}}" for n in (5, 10)],
            r"\[1\].*already in .*\[0\] in mode shadow",
        ),
    ],
)
def test_an_entity_given_twice_in_a_mode_is_refused_with_both_places(
    tmp_path: Path, entries: list[str], places: str
) -> None:
    path = quotas_file(tmp_path, "".join(f"- {entry}\n" for entry in entries))

    with pytest.raises(InvalidQuotaError, match=re.escape(str(path)) + places) as caught:
        load_quotas_file(path)

    assert caught.value.reason == "duplicate_entity"


def test_a_key_given_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    text = "- entity: {user: alice}\n  quotas:\n    request_percentage: 1\n    request_percentage: 2\n"
    path = quotas_file(tmp_path, text)

    with pytest.raises(
        InvalidSettingsError, match=re.escape(f"{path}:4:5: the key request_percentage is already")
    ) as e:
        load_quotas_file(path)

    assert "line 3" in str(e.value)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (QuotaKind.PRODUCER_BYTE_RATE, float("nan"), "not_finite"),
        (QuotaKind.PRODUCER_BYTE_RATE, float("inf"), "not_finite"),
        (QuotaKind.PRODUCER_BYTE_RATE, float("-inf"), "not_finite"),
        (QuotaKind.PRODUCER_BYTE_RATE, 0.0, "not_positive"),
        (QuotaKind.PRODUCER_BYTE_RATE, -0.5, "not_positive"),
        (QuotaKind.PRODUCER_BYTE_RATE, 2.0**63 + 2048, "too_large"),
        (QuotaKind.CONSUMER_BYTE_RATE, 1235.000002, "fractional"),
        (QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 0.5, "fractional"),
        (QuotaKind.CONTROLLER_MUTATION_RATE, 0.0, "not_positive"),
    ],
)
def test_values_that_kafka_refuses_are_refused(kind: QuotaKind, value: float, reason: str) -> None:
    with pytest.raises(InvalidQuotaError) as caught:
        check_value(kind, value)

    assert caught.value.reason == reason


def test_clients_and_topics_have_keys_of_their_own() -> None:
    assert [quota_kind(ALICE, kind.value) for kind in CLIENT_KINDS] == list(CLIENT_KINDS)
    with pytest.raises(InvalidQuotaError, match="unknown quota key None"):
        quota_kind(ALICE, None)


@pytest.mark.parametrize(
    "entry",
    [
        "- [{long}]",
        "- {entity: [{long}], quotas: {a: 1}}",
        "- {entity: {user: [{long}]}, quotas: {a: 1}}",
        "- {entity: {user: a}, quotas: {request_percentage: [{long}]}}",
        "- {entity: {user: a}, mode: [{long}], quotas: {request_percentage: 1}}",
        "- {entity: {user: a}, {long} : 1}",
        "- {entity: {user: a}, quotas: {? {long} : 1}}",
        "- {entity: {? {long} : a}, quotas: {a: 1}}",
    ],
)
def test_a_long_value_is_cut_in_the_error(tmp_path: Path, entry: str) -> None:
    path = quotas_file(tmp_path, entry.replace("{long}", "x" * 900))

    with pytest.raises(InvalidQuotaError) as caught:
        load_quotas_file(path)

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["al\u202eice", "al\x9bice\x1b[2J", "straße 東京"])
def test_an_export_runs_and_turns_nothing_in_a_terminal(tmp_path: Path, name: str) -> None:
    quotas, file = [QuotaEntry(QuotaEntity(user=name), QuotaKind.PRODUCER_BYTE_RATE, 1.0)], tmp_path / "quotas.yaml"
    text = quotas_yaml(quotas)
    file.write_text(text, encoding="utf-8")

    assert all(line.isprintable() for line in text.splitlines())
    assert load_quotas_file(file) == quotas
    assert (name in text) == name.isprintable()
