from __future__ import annotations

import datetime
from typing import Any

import pytest

from schemas.errors import ConfigError
from tasks.run.rejects import RowRejected
from tasks.sft.chat.template import GENERATION_CLOSE, GENERATION_OPEN, ChatTemplate

PAIR = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source, variables).render(PAIR, None)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.role }}:{{ m['content'] }};{% endfor %}", "user:a;assistant:b;"),
        ("{%- if tools is none %}no tools{% endif %}\n", "no tools"),
        ("{{ {'b': 'é<', 'a': 1} | tojson }}", '{"b": "é<", "a": 1}'),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        ("{% for m in messages %}{% if loop.last %}{{ loop.length }}{% break %}{% endif %}{% endfor %}", "2"),
        (
            "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.last }}{% endfor %}",
            "True",
        ),
        ("{% for x in [[1,[2]],[3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% macro say(x) %}[{{ x }}]{% endmacro %}{{ say('hi') }}", "[hi]"),
        ("{{ 'ab' * 2 }}{{ 2 ** 5 }}", "abab32"),
        ("{{ strftime_now is defined }}", "False"),
    ],
)
def test_what_templates_may_do(source: str, expected: str) -> None:
    assert render(source) == expected


def test_generation_marks_survive_macros_and_set_blocks() -> None:
    source = (
        "{% macro turn(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
        "{% for m in messages %}{% set text %}{{ turn(m) }}{% endset %}{{ text }}{% endfor %}"
    )
    template = ChatTemplate(source, {})
    assert template.marks_generation
    marked = [f"{GENERATION_OPEN}{text}{GENERATION_CLOSE}" for text in "ab"]
    assert template.render(PAIR, None) == "".join(marked)


def test_a_set_inside_a_generation_block_stays_there() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}"
    assert render(source).strip(GENERATION_OPEN + GENERATION_CLOSE) == "1"


def test_reasoning_is_found_under_each_of_its_names() -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}", {})
    for name in ("reasoning_content", "thinking", "reasoning"):
        assert template.render([{"role": "assistant", name: "why"}], None) == "why|why"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}", "template_budget"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
            "template_budget",
        ),
        ("{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}", "template_error"),
        ("{{ 'a' * 10**12 }}", "template_budget"),
        ("{{ 9 ** 9 ** 9 ** 9 }}", "template_budget"),
        ("{{ messages.__class__.__mro__ }}", "template_error"),
        ("{{ messages.append(1) }}", "template_error"),
        ("{% include '/etc/passwd' %}", "template_error"),
        ("{{ raise_exception('not like this') }}", "template_error"),
        ("{{ messages[0].content + 1 }}", "template_error"),
    ],
)
def test_what_templates_may_not_do(source: str, reason: str) -> None:
    with pytest.raises(RowRejected) as caught:
        render(source)
    assert caught.value.reason == reason


def test_a_template_that_never_ends_is_a_configuration_error() -> None:
    endless = ChatTemplate(
        "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}", {}
    )
    with pytest.raises(ConfigError, match="loop for ever"):
        endless.check_terminates()
    ChatTemplate("{{ raise_exception('system prompt required') }}", {}).check_terminates()


def test_a_syntax_error_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError) as caught:
        ChatTemplate("\n{% if %}", {})
    assert caught.value.where == "tokenizer.chat_template"
    assert "line 2" in caught.value.message


def test_the_date_is_the_configured_one() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, datetime.date(2024, 7, 26))
    assert template.render(PAIR, None) == "26 Jul 2024"
