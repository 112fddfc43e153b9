"""Templates that try to take all time or memory, each with the reason its row is rejected for; and a process that
runs them one after another under a limit of memory, and prints what became of each."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from schemas.errors import ConfigError
from tasks.run.rejects import RowRejected
from tasks.sft.chat.template import ChatTemplate

MEMORY = 300 << 20
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b" * 100_000}]

BIG = "{% set big = 'x' * 9999999 %}"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set ns = namespace(x=START) %}{% for i in range(99) %}{% set ns.x = NEXT %}{% endfor %}{{ ns.x }}"
)


def _doubled(start: str, following: str) -> str:
    return DOUBLED.replace("START", start).replace("NEXT", following)


BUDGET = [
    # Loops, macros, recursion.
    LOOP.replace("BODY", "x"),
    LOOP.replace("BODY", "{{ b }}"),
    LOOP.replace("BODY", "{% set c = [a, b] %}"),
    LOOP.replace("BODY", "{% if 'ab' in messages[1].content %}{% endif %}"),
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro g() %}{{ caller() }}{{ caller() }}{% endmacro %}{% macro f(n) %}{% if n %}"
    "{% call g() %}{{ f(n - 1) }}{% endcall %}{% endif %}{% endmacro %}{{ f(20) }}",
    "{% set ns = namespace(n=0) %}{% block a %}{% if n | default(0) < 60 %}{% for i in range(9999) %}"
    "{% for j in range(9999) %}{{ j }}{% endfor %}{% endfor %}{% endif %}{% endblock %}",
    "{% for a in 'x' * 9999999 %}{% for b in 'xxxx' %}{{ a }}{% endfor %}{% endfor %}",
    "{% for x in range(99999) %}" + "y" * 2000 + "{% endfor %}",
    "{% for x in range(9999) %}{% for y in range(9) %}" + "{{ y }}" * 500 + "{% endfor %}{% endfor %}",
    # Operators.
    "{{ 'a' * 10**12 }}",
    "{{ 10**12 * 'a' }}",
    "{{ [0] * 10**10 }}",
    "{{ (messages,) * 10**8 }}",
    "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
    "{{ 2 ** 99999999 }}",
    "{% set n = 'f' * 999999 %}{% set n = n | int(base=16) %}{{ n * n }}",
    _doubled("'ab'", "ns.x + ns.x"),
    _doubled("'ab'", "ns.x ~ ns.x"),
    _doubled("'ab'", "ns.x * 2"),
    _doubled("'ab'", "'%s%s' % (ns.x, ns.x)"),
    _doubled("'ab'", "'{0}{0}'.format(ns.x)"),
    _doubled("'ab'", "'%s%s' | format(ns.x, ns.x)"),
    _doubled("[1]", "ns.x + ns.x"),
    _doubled("[1]", "[ns.x, ns.x]"),
    _doubled("(1, 2)", "(ns.x, ns.x)"),
    _doubled("{}", "{'a': ns.x, 'b': ns.x}"),
    _doubled("{}", "namespace(a=ns.x, b=ns.x)"),
    _doubled("'ab'", "[ns.x, ns.x] | join"),
    _doubled("'ab'", "''.join([ns.x, ns.x])"),
    _doubled("'ab'", "ns.x | replace('', 'cc')"),
    _doubled("'ab'", "ns.x.replace('a', 'aa')"),
    _doubled("'\\n'", "ns.x | tojson"),
    _doubled("99", "ns.x * ns.x"),
    _doubled("1", "ns.x - (0 - ns.x) * ns.x * 9999"),
    # Widths, precisions, fills.
    "{{ '%1000000000d' % 5 }}",
    "{{ '%.1000000000f' % 5 }}",
    "{{ '%*d' % (1000000000, 5) }}",
    "{{ '{:1000000000}'.format(5) }}",
    "{{ '{:{}}'.format(5, 1000000000) }}",
    "{{ '{a:>1000000000}'.format_map({'a': 'x'}) }}",
    "{{ '%1000000000s' | format('x') }}",
    "{{ 'a' | center(10**10) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ 'a'.zfill(10**10) }}",
    "{{ '\\t\\t'.expandtabs(10**10) }}",
    "{{ 'a\\nb' | indent(10**10) }}",
    "{{ 'a\\nb\\nc' | indent('x' * 9999999) }}",
    "{{ 'a b' | wordwrap(1, wrapstring='x' * 9999999) }}",
    "{{ [1] | batch(10**9, 0) | list }}",
    "{{ [1] | slice(10**9, 0) | list }}",
    "{{ range(99999) | map('center', 10**6) | list }}",
    "{{ 'ab' | map('center', 10**9) | join }}",
    "{{ {'a': [[[1]]]} | tojson(indent=10**9) }}",
    "{{ 5 | round(-100000000) }}",
    "{{ (5).to_bytes(10**10, 'big') }}",
    "{{ 'a'.translate({97: 'x' * 9999999}) ~ 'aaa'.translate({97: 'x' * 9999999}) }}",
    "{{ range(99999) | join('x' * 9999) }}",
    # Text that is searched, cut or parsed in quadratic time; many copies.
    BIG + "{{ big.rfind('y' + 'x' * 999999) }}",
    BIG + "{{ big.strip('y' * 999999 + 'x') }}",
    "{{ ('<' * 9999999) | forceescape }}",
    "{{ ('%' * 9999999) | urlencode }}",
    "{{ ('\\n' * 99999) | indent(999, true, true) }}",
    BIG + "{{ big.encode('punycode') }}",
    "{{ ('<!---->' * 999999) | striptags }}",
    "{{ ('a@' * 999999) | urlize }}",
    BIG + "{{ big | wordwrap(1) }}",
    BIG + "{{ big | list }}",
    BIG + "{{ ('x ' * 9999999).split() }}",
    BIG + "{{ ('x\\n' * 4999999).split('\\n') }}",
    BIG + "{% for i in range(999) %}{{ big }}{% endfor %}",
    BIG + "{% for i in range(999) %}{% set y = big[1:] %}{% endfor %}",
    BIG + "{% for i in range(999) %}{% set y %}{{ big }}{% endset %}{% endfor %}",
    BIG + "{% set other = 'x' * 9999999 %}{% for i in range(99999) %}{{ big == other }}{% endfor %}",
    BIG + "{% for i in range(99999) %}{{ 'y' in big }}{% endfor %}",
    BIG + "{% for i in range(99999) %}{{ big is lower }}{% endfor %}",
    BIG + "{% for i in range(99999) %}{{ big | upper | length }}{% endfor %}",
    BIG + "{% for i in range(99999) %}{{ big.upper() | length }}{% endfor %}",
    BIG + "{% filter upper %}{{ big }}{{ big }}{% endfilter %}",
    BIG + "{{ [big] * 1000 }}",
    BIG + "{{ '%s' % ([big] * 1000,) }}",
    BIG + "{% autoescape true %}{{ big ~ big ~ messages }}{% endautoescape %}",
    "{% set a = ('é' * 999999).encode().decode('latin-1') %}",
    "{% set l = range(99999) | list %}{% for i in range(9999) %}{{ l | sum }}{% endfor %}",
    "{% set l = range(99999) | map('string') | list %}{{ [l, l, l] | sum(start=[]) | length }}",
    "".join(f"{{% set a{i} = 'é' * 3999999 %}}" for i in range(99)),
    "".join(f"{{% set a{i} = 'x' * 15999999 %}}" for i in range(99)),
]

ERROR = [
    "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "{% set _gristmill_budget = 1 %}{{ budget.left }}",
    "{% set t = (1, 2) %}{{ {}[t] }}",
    "{{ range(10**9) }}",
    "{{ 'a' | attr('__class__') | attr('mro') }}{{ 'x'.__class__.mro() }}",
]

# These do not compile.
BAD = [
    "{{ lipsum(10**6) }}{{ [1] | random }}",
    "x" * 66_000,
    "{{ a }}" * 10_000,
    "{{ " + "(" * 20_000 + ")" * 20_000 + " }}",
    "{{ a + " * 4_000 + "b }}",
    "{{ a" + " + a" * 16_000 + " }}",
    "{{ 0x" + "f" * 9999 + " }}",
]


def _outcome(source: str) -> str:
    try:
        return f"printed {len(ChatTemplate(source, {}).render(MESSAGES, None))} characters"
    except RowRejected as rejected:
        return rejected.reason
    except ConfigError as error:
        return error.code


def _limited(source: str, pipe: int) -> None:
    """Run in a forked child: its address space may grow by `MEMORY`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    before = resource.getrusage(resource.RUSAGE_SELF)
    outcome = _outcome(source)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    os.write(pipe, json.dumps([outcome, seconds]).encode())


def main() -> None:
    """Print the outcome and the processor seconds of every template, one JSON list a line."""
    for source in [*BUDGET, *ERROR, *BAD]:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                _limited(source, write)
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            print(answer.read() or '["died", 0]')
        os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(main())
