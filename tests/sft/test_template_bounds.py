from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import hostile_templates as hostile
import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.errors import ConfigError
from tasks.inputs.texts import template_source
from tasks.run.rejects import RowRejected
from tasks.sft.chat.budget import MAX_VALUE, weigh
from tasks.sft.chat.template import ChatTemplate

CASES = [
    *((source, "template_budget") for source in hostile.BUDGET),
    *((source, "template_error") for source in hostile.ERROR),
    *((source, "bad_template") for source in hostile.BAD),
]
# Two seconds on the machine the budget was chosen on; the steps are the same on a slower one.
SECONDS = 6


@pytest.fixture(scope="module")
def outcomes() -> list[tuple[str, float]]:
    done = subprocess.run(
        [sys.executable, hostile.__file__], capture_output=True, text=True, check=True, timeout=600
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[source[:60] for source, _ in CASES])
def test_hostile_templates_end_in_two_seconds_and_300_mb(
    outcomes: list[tuple[str, float]], number: int
) -> None:
    outcome, seconds = outcomes[number]
    assert outcome == CASES[number][1]
    assert seconds < SECONDS


MESSAGES = [
    {"role": "user", "content": "1 <b>"},
    {"role": "assistant", "content": "<think>a</think>\n\u00e9 "},
]
PLAIN = [
    "{{ messages[0].content + 'a' + '\\n' }}{{ 1 + 2 + 0.5 }}{{ [1] + [2] }}",
    "{{ 'a' ~ 1 ~ none ~ messages[0] }}{{ 'a' ~ 'b' + 'c' }}",
    "{{ messages[::-1] }}{{ messages[0].content[1:3] }}{{ [messages[0], (1, 2), {'a': [1]}] }}",
    "{{ messages[1].content.split('</think>')[-1].lstrip('\\n') }}|{{ ' x '.strip() }}|{{ 'a b'.split() }}",
    "{% for m in messages %}{{ loop.index0 - 1 }}{{ m.content.startswith('<think>') }}"
    "{{ m.get('x', 3) }}{% endfor %}",
    "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'eq', 'user') | list }}",
    "{{ messages | selectattr('role', 'in', ['user']) | map('upper') | first }}",
    "{% if messages | selectattr('role', 'eq', 'x') %}yes{% endif %}{{ [3, 1, 2] | sort | join }}",
    "{{ messages[0].items() | list }}{% for k, v in messages[0] | items %}{{ k }}={{ v }}{% endfor %}",
    "{{ '%s-%03d' % ('a', 5) }}{{ '{:>5}|{a}'.format(1, a=2) }}{{ '%.2f' | format(1.234) }}",
    "{{ 'a\\nb' | indent(4) }}{{ 'ab' | center(9) }}{{ 'a b c' | wordwrap(3) }}{{ 'abc' | truncate(5, true) }}",
    "{{ messages[0].content | e }}{{ '<&>' | escape ~ '<' }}{% autoescape true %}{{ '<' + 'b' }}{% endautoescape %}",
    "{{ [1, 2, 3, 4, 5] | batch(2, 0) | list }}{{ [1, 2, 3] | slice(2) | list }}{{ [1, 2] | sum }}",
    "{{ 2.567 | round(1) }}",
    "{{ messages[0].no is defined }}{{ messages[0]['no'] is defined }}{{ messages[0].no }}{{ messages[0]['no'] }}"
    "{% for m in messages %}{{ loop.last }}{{ loop.revindex0 }}{{ loop.no is defined }}{{ loop.depth }}{% endfor %}",
    "{% macro f(x, y='z') %}[{{ x }}{{ y }}{{ caller() if caller else '' }}]{% endmacro %}{{ f(1) }}"
    "{% call f(2, y=3) %}in{% endcall %}",
    "{% set ns = namespace(a=[], n=0) %}"
    "{% for m in messages %}{% set ns.a = ns.a + [m.role] %}{% endfor %}{{ ns.a }}",
    "{% filter upper %}a{{ messages[0].role }}{% endfilter %}{% set x %}b{{ 1 }}{% endset %}{{ x ~ x }}",
    "{{ 1 in [1, 2] }}{{ 'think' in messages[1].content }}{{ messages[0] == messages[1] }}{{ 1 < 2 < 3 }}",
    "{{ cycler('a', 'b').next() }}{{ dict(a=1) }}{{ range(3) | list }}{{ {'b': 1, 'a': 2} | dictsort }}",
    "{{ messages | groupby('role') | length }}{{ 'a b' | title | replace('A', 'c') | reverse }}",
    "{{ 10 // 3 }}{{ 2 ** 8 }}",
    "{% block a %}{{ messages[0].role }}{% endblock %}{{ self.a() }}{{ x is undefined }}{{ x }}{{ 'a' is string }}",
]


@pytest.mark.parametrize("source", PLAIN)
def test_what_is_bounded_prints_what_plain_jinja_prints(source: str) -> None:
    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    expected = plain.from_string(source).render(messages=MESSAGES)
    assert ChatTemplate(source, {}).render(MESSAGES, None) == expected


def test_a_long_conversation_stays_within_the_budget() -> None:
    source = (
        "{% for m in messages %}{% set ns = namespace(last=false) %}{% for n in messages %}"
        "{% if n.role == 'user' %}{% set ns.last = true %}{% endif %}{% endfor %}"
        "{{ '<|im_start|>' + m.role + '\\n' + (m.content | trim) + '<|im_end|>' }}{% endfor %}"
    )
    text = ChatTemplate(source, {}).render([{"role": "user", "content": " x"}] * 1400, None)
    assert text == "<|im_start|>user\nx<|im_end|>" * 1400
    large = [{"role": "user", "content": "\u00e9" * 2_000_000}]
    assert len(ChatTemplate("{{ messages[0].content | trim | tojson }}", {}).render(large, None)) == 2_000_002


def test_no_template_can_reach_its_budget() -> None:
    assert ChatTemplate("{{ budget }}{% set budget = 1 %}{{ budget }}", {}).render([], None) == "1"


def test_a_data_file_as_template_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": []}\n' * 60_000)
    with pytest.raises(ConfigError, match="at most 262,144 bytes"):
        template_source(str(path), "tokenizer.chat_template")
    with pytest.raises(ConfigError, match="at most 65,536 are allowed; is it a template"):
        ChatTemplate(path.read_text()[:100_000], {})


def test_what_holds_itself_is_weighed() -> None:
    namespace = jinja2.utils.Namespace()
    namespace["self"] = namespace
    assert weigh([namespace]) > MAX_VALUE


COUNTDOWNS = [
    "{% macro a(n) %}{% if n > 1 %}{{ a(n - 1) }}{% endif %}x{% endmacro %}{{ a(N) }}",
    "{% macro a(n) %}{{ caller() }}{% if n > 1 %}{% call a(n - 1) %}{% endcall %}{% endif %}x{% endmacro %}"
    "{% call a(N - 1) %}{% endcall %}x",
    "{% for m in [N - 1] recursive %}x{% if m > 0 %}{{ loop([m - 1]) }}{% endif %}{% endfor %}",
    "{% set ns = namespace(n=N) %}{% block a scoped %}{% set ns.n = ns.n - 1 %}x"
    "{% if ns.n >= 0 %}{{ self.a() }}{% endif %}{% endblock %}",
]


@pytest.mark.parametrize("source", COUNTDOWNS)
def test_calls_within_calls_are_bounded_wherever_the_render_starts(source: str) -> None:
    def rendered(calls: int, frames: int = 0) -> str:
        if frames:
            return rendered(calls, frames - 1)
        return ChatTemplate(source.replace("N", str(calls)), {}).render([], None)

    for frames in (0, 200):
        assert rendered(60, frames).count("x") >= 60
        for calls in (66, 1000):
            with pytest.raises(RowRejected, match="recurses too deeply: at most 64 calls") as caught:
                rendered(calls, frames)
            assert caught.value.reason == "template_error"


@pytest.mark.parametrize(
    "nested", ["{{ " + "(" * 30_000, "{{ " + "[" * 30_000, "{{ 1" + " - 1" * 15_000 + " }}"]
)
def test_what_is_nested_too_deeply_does_not_compile(nested: str) -> None:
    with pytest.raises(ConfigError, match="nested too deeply") as caught:
        ChatTemplate(nested, {})
    assert caught.value.code == "bad_template"


@pytest.mark.parametrize(
    "constant",
    ["9 ** (9 ** 9)", "'a' * 10 ** 10", "[1] * 10 ** 10", "'x' | center(10 ** 9)", "'%1000000000d' % 1"],
)
def test_constants_are_not_computed_when_a_template_compiles(constant: str) -> None:
    template = ChatTemplate("{% if messages %}{{ " + constant + " }}{% endif %}", {})
    assert template.render([], None) == ""
    with pytest.raises(RowRejected) as caught:
        template.render([{"role": "user", "content": "a"}], None)
    assert caught.value.reason == "template_budget"
