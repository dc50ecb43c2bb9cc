"""The login of sasl.jaas.config, as Kafka's Java clients read it: JaasConfig of Kafka 4.1 was asked for each case."""

import pytest

from sluice.kafka_io.errors import UnsupportedPropertyError
from sluice.kafka_io.jaas import login_of
from sluice.kafka_io.properties import check_properties

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('username="al\\"ice" password=\'p w\';', {"username": 'al"ice', "password": "p w"}),
        ("a-b=x.y-z $x=_y;", {"a-b": "x.y-z", "$x": "_y"}),
        ('a="\\n\\101\\8";', {"a": "\nA8"}),
        ("a=b//x\n /* c */ c=é€;", {"a": "b", "c": "é€"}),
        ("a=p/w\n;", {"a": "p"}),  # a slash begins a comment
        ('a="unclosed\n;', {"a": "unclosed"}),
        (";", {}),
    ],
)
def test_options_are_those_of_java(text: str, options: dict[str, str]) -> None:
    found = login_of(f"x.Module Required {text}")

    assert (found.module, found.options) == ("x.Module", options)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('x required username="hunter2"', "doesn't end with a semicolon"),
        ('x required username="hunter2" password=12hunter2;', "numbers need the quotes"),
        ("x required username=-hunter2;", "isn't name="),
        ("x required username=@hunter2;", "isn't name="),
        ('x username="hunter2";', "no 'required'"),
        ('x require username="hunter2";', "no 'required'"),
        ('x required; x required username="hunter2";', "something after its semicolon"),
        ("", "doesn't begin with the name of a module"),
    ],
)
def test_a_text_that_java_refuses_is_refused_without_what_is_in_it(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedPropertyError, match=f"^sasl.jaas.config .*{reason}") as caught:
        login_of(text)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("module", "mechanism"), [(PLAIN, "SCRAM-SHA-512"), (SCRAM, "PLAIN")])
def test_a_module_that_does_not_know_the_mechanism_is_named(module: str, mechanism: str) -> None:
    login = {"sasl.jaas.config": f'{module} required username="a" password="b";', "sasl.mechanism": mechanism}

    with pytest.raises(UnsupportedPropertyError, match=rf"LoginModule, which doesn't know sasl\.mechanism {mechanism}"):
        check_properties({"security.protocol": "SASL_SSL"} | login)
