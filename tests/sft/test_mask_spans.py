"""Which characters are trained, case by case: small templates, no tokenizer, the whole text as expected value.

Trained text stands in [brackets], a piece that is encoded as plain text in <angles>.
"""

from __future__ import annotations

from typing import Any

import pytest

from schemas.sft import TrainOn
from tasks.run.rejects import RowRejected
from tasks.sft.chat.dialects import Conversation
from tasks.sft.chat.masks import samples
from tasks.sft.chat.template import ChatTemplate

# A header, the text, an end-of-turn marker, and what the template prints after it.
TURN = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content or '' }}.{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
# Without an end-of-turn marker.
OPEN_END = TURN.replace("}}.{{", "}}{{")
BLANK_HEADER = OPEN_END.replace("}}:{{", "}}\n\n{{").replace("%}a:{%", "%}a\n\n{%")
MARKED = (
    "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}.{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}"
)
# The header that invites an answer is not the one that is printed later.
INVITES_MORE = TURN.replace("%}a:{%", "%}a:think{%")
REFUSES_TO_INVITE = TURN.replace("%}a:{%", "%}{{ raise_exception('no') }}{%")
# An answer is printed whole only while it is the last message.
SHORTENS = (
    "{% for m in messages %}{{ m.role[0] }}:"
    "{{ m.content if loop.last or m.role == 'user' else m.content[0] }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
# Answers before the last question are shortened, those after it are whole.
SHORTENS_EARLIER_TURNS = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ m.role[0] }}:"
    "{{ m.content if m.role == 'user' or loop.index0 > ns.last else m.content[0] }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def user(content: str = "q", **keys: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **keys}


def answer(content: Any = "ok", **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **keys}


def trained(
    template: str,
    messages: list[dict[str, Any]],
    train_on: str = "assistant",
    literals: list[str] | None = None,
) -> list[str]:
    """Every sample, its pieces in the brackets that say how they are encoded."""
    found = samples(
        ChatTemplate(template, {}), Conversation(messages, None), TrainOn(train_on), literals or []
    )
    for sample in found:
        assert all(piece.text for piece in sample)
    return ["".join(map(_bracketed, sample)) for sample in found]


def _bracketed(piece: Any) -> str:
    text = f"<{piece.text}>" if piece.literal else piece.text
    return f"[{text}]" if piece.trained else text


def rejected(template: str, messages: list[dict[str, Any]], train_on: str = "assistant") -> tuple[str, str]:
    with pytest.raises(RowRejected) as caught:
        samples(ChatTemplate(template, {}), Conversation(messages, None), TrainOn(train_on), [])
    return caught.value.reason, caught.value.detail


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        # The model stops at the marker: the newline behind it is the template's.
        (TURN, [user(), answer()], "u:q.\na:[ok.]\n"),
        (TURN, [user(), answer(), user("r"), answer("no")], "u:q.\na:[ok.]\nu:r.\na:[no.]\n"),
        (TURN, [user(), answer("one"), answer("two")], "u:q.\na:[one.]\na:[two.]\n"),
        (TURN, [answer(), user()], "a:[ok.]\nu:q.\n"),
        (TURN, [answer()], "a:[ok.]\n"),
        # White space inside an answer is the model's.
        (TURN, [user(), answer(" ok \n")], "u:q.\na:[ ok \n.]\n"),
        # Without a marker the white space is the only end a model can learn.
        (OPEN_END, [user(), answer()], "u:q\na:[ok\n]"),
        (OPEN_END, [user(), answer(" ok \n")], "u:q\na:[ ok \n\n]"),
        # Without a header, too, where the answer begins with the text.
        ("{% for m in messages %}{{ m.content }}{{ '\\n' }}{% endfor %}", [answer()], "[ok\n]"),
        # What ends the answer is not what stands in the question, or the header.
        (OPEN_END, [user("ok"), answer()], "u:ok\na:[ok\n]"),
        (OPEN_END, [user(), answer("a")], "u:q\na:[a\n]"),
        # The marker's own characters in an answer are not the marker.
        (TURN, [user(), answer(".")], "u:q.\na:[..]\n"),
        (TURN, [user(), answer("ok.")], "u:q.\na:[ok..]\n"),
        # An answer that the template shortens is nowhere in the text: its end is the marker's.
        (TURN.replace("m.content or ''", "m.content[0]"), [user(), answer("o" + 40 * "k")], "u:q.\na:[o.]\n"),
        # An empty answer is its marker, or nothing at all.
        (TURN, [user(), answer("")], "u:q.\na:[.]\n"),
        (TURN, [user(), answer(None)], "u:q.\na:[.]\n"),
        (OPEN_END, [user(), answer("")], "u:q\na:[\n]"),
        (OPEN_END, [user(), answer(None)], "u:q\na:\n"),
        (BLANK_HEADER, [user(), answer(None)], "u\n\nq\na\n\n\n"),
        # The text in parts: the white space at its end may be the template's.
        (OPEN_END, [user(), answer(["x", "y"])], "u:q\na:[['x', 'y']]\n"),
        # A header that invites with more, or refuses, is found by a probe.
        (INVITES_MORE, [user(), answer("thi")], "u:q.\na:[thi.]\n"),
        (INVITES_MORE, [user(), answer("a1"), user("r"), answer("a2")], "u:q.\na:[a1.]\nu:r.\na:[a2.]\n"),
        (REFUSES_TO_INVITE, [user(), answer()], "u:q.\na:[ok.]\n"),
        (REFUSES_TO_INVITE, [user(), answer("a1"), user("r"), answer("a2")], "u:q.\na:[a1.]\nu:r.\na:[a2.]\n"),
        # The marks say it themselves.
        (MARKED, [user(), answer()], "u:q;a:[ok.];"),
        (MARKED, [user(), answer("a1"), user("r"), answer("a2")], "u:q;a:[a1.];u:r;a:[a2.];"),
        (MARKED.replace("}}.{%", "}}{%"), [user(), answer(""), user("r"), answer()], "u:q;a:;u:r;a:[ok];"),
    ],
)  # fmt: skip
def test_trained_text(template: str, messages: list[dict[str, Any]], expected: str) -> None:
    assert trained(template, messages) == [expected]


CHAT = [user("q1"), answer("a1"), answer("a2"), user("q2"), answer("a3")]


@pytest.mark.parametrize(
    ("flags", "train_on", "expected"),
    [
        ({}, "assistant", ["a1", "a2", "a3"]),
        ({}, "last_turn", ["a3"]),
        ({1: {"train": True}, 2: {"train": False}}, "assistant", ["a1", "a3"]),
        ({1: {"train": None}}, "assistant", ["a1", "a2", "a3"]),
        ({1: {"train": "true"}}, "assistant", ["a1", "a2", "a3"]),
        ({1: {"train": "false"}}, "assistant", ["a2", "a3"]),
        ({1: {"weight": 0}, 2: {"weight": 1}}, "assistant", ["a2", "a3"]),
        ({1: {"weight": 0.0}}, "assistant", ["a2", "a3"]),
        # Either is enough to leave a message out.
        ({1: {"weight": 0, "train": True}}, "assistant", ["a2", "a3"]),
        ({1: {"weight": 1, "train": False}}, "assistant", ["a2", "a3"]),
        # A flag says what is left out; it makes no question an answer.
        ({0: {"train": True}, 3: {"weight": 1}}, "assistant", ["a1", "a2", "a3"]),
        ({0: {"train": False}}, "assistant", ["a1", "a2", "a3"]),
        ({1: {"train": False}, 2: {"train": False}}, "last_turn", ["a3"]),
    ],
)
@pytest.mark.parametrize("template", [TURN, MARKED], ids=["prefix renders", "generation blocks"])
def test_flags(template: str, flags: dict[int, Any], train_on: str, expected: list[str]) -> None:
    messages = [{**message, **flags.get(place, {})} for place, message in enumerate(CHAT)]
    (text,) = trained(template, messages, train_on)
    assert [part.partition(".")[0] for part in text.split("[")[1:]] == expected
    # The template never sees a flag, and nothing else is lost.
    assert text.replace("[", "").replace("]", "") == trained(template, CHAT)[0].replace("[", "").replace(
        "]", ""
    )


def test_a_template_sees_all_keys_but_the_flags() -> None:
    keys = "{% for m in messages %}{{ m | list | join(',') }};{% endfor %}"
    assert trained(keys, [user(train=False, name="x"), answer(weight=1)], "all") == [
        "role,content,name;[role,content;]"
    ]


@pytest.mark.parametrize(
    ("messages", "train_on"),
    [
        ([user()], "assistant"),
        ([user()], "last_turn"),
        ([], "assistant"),
        ([user(), answer(train=False)], "assistant"),
        # The last answer is left out; an earlier one does not take its place.
        ([user(), answer(), user(), answer(weight=0)], "last_turn"),
    ],
)
def test_rows_that_train_nothing_are_rejected(messages: list[dict[str, Any]], train_on: str) -> None:
    reason, detail = rejected(TURN, messages, train_on)
    assert (reason, detail) == (
        "no_trained_token",
        "every assistant message is excluded by train: false or weight: 0",
    )


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (TURN, [user(), answer()], "[u:q.\na:ok.\n]"),
        (MARKED, [user(), answer()], "[u:q;a:ok.;]"),
        (TURN, [user()], "[u:q.\n]"),
        # What is left out begins at its header: the answer's is the template's, and trained.
        (TURN, [user(), answer(train=False)], "[u:q.\na:]ok.[\n]"),
        (MARKED, [user(), answer(train=False)], "[u:q;]a:ok.;"),
        # Of any other message the header goes with it.
        (TURN, [user(train=False), answer()], "u:q.[\na:ok.\n]"),
        (TURN, [user(weight=0), answer(train=False)], "u:q.[\na:]ok.[\n]"),
        (TURN, [user("a"), answer("b"), user("c", train=False), answer("d")], "[u:a.\na:b.\n]u:c.[\na:d.\n]"),
        (TURN, [user(train=True), answer(train=False), answer("b")], "[u:q.\na:]ok.[\na:b.\n]"),
    ],
)  # fmt: skip
def test_train_on_all(template: str, messages: list[dict[str, Any]], expected: str) -> None:
    assert trained(template, messages, "all") == [expected]


def test_train_on_all_needs_to_know_what_is_left_out() -> None:
    chat = [user(), answer("one", train=False), user(), answer("two")]
    assert rejected(SHORTENS, chat, "all")[0] == "mask_unresolved"
    assert "train: false" in rejected(SHORTENS, chat, "all")[1]
    # Without anything to leave out there is nothing to find.
    assert trained(SHORTENS, [user(), answer("one"), user(), answer("two")], "all") == [
        "[u:q;a:o;u:q;a:two;]"
    ]


@pytest.mark.parametrize(
    ("messages", "train_on", "expected"),
    [
        ([user("1"), answer("one"), user("2"), answer("two")], "assistant", ["u:1;a:[one;]", "u:1;a:o;u:2;a:[two;]"]),
        # A turn without a trained answer makes no sample, wherever it stands.
        (
            [user("1"), answer("one", train=False), user("2"), answer("two"), user("3"), answer("three")],
            "assistant",
            ["u:1;a:o;u:2;a:[two;]", "u:1;a:o;u:2;a:t;u:3;a:[three;]"],
        ),
        (
            [user("1"), answer("one"), user("2"), user("3"), answer("two")],
            "assistant",
            ["u:1;a:[one;]", "u:1;a:o;u:2;u:3;a:[two;]"],
        ),
        # Several answers to one question train in one sample.
        (
            [user("1"), answer("one"), user("2"), answer("two"), answer("three")],
            "assistant",
            ["u:1;a:[one;]", "u:1;a:o;u:2;a:[two;]a:[three;]"],
        ),
        # The last turn needs no split: it is whole in the full text.
        ([user("1"), answer("one"), user("2"), answer("two")], "last_turn", ["u:1;a:o;u:2;a:[two;]"]),
        # An untrained message before the first question stands in every sample.
        (
            [{"role": "system", "content": "s"}, user("1"), answer("one"), user("2"), answer("two")],
            "assistant",
            ["s:s;u:1;a:[one;]", "s:s;u:1;a:o;u:2;a:[two;]"],
        ),
    ],
)  # fmt: skip
def test_one_sample_a_user_turn(messages: list[dict[str, Any]], train_on: str, expected: list[str]) -> None:
    template = SHORTENS_EARLIER_TURNS.replace("m.role == 'user' or", "m.role != 'assistant' or")
    assert trained(template, messages, train_on) == expected


def test_an_answer_before_the_first_question_needs_a_template_that_keeps_it() -> None:
    early = [answer("zero"), user("1"), answer("one"), user("2"), answer("two")]
    reason, detail = rejected(SHORTENS_EARLIER_TURNS, early)
    assert reason == "mask_unresolved"
    assert "before the first user message" in detail
    early[0]["train"] = False
    assert trained(SHORTENS_EARLIER_TURNS, early) == ["a:z;u:1;a:[one;]", "a:z;u:1;a:o;u:2;a:[two;]"]
    # Without any question there is no turn to split by.
    reason, detail = rejected(SHORTENS, [answer("one"), answer("two")])
    assert (reason, "before the first user message" in detail) == ("mask_unresolved", True)


def test_a_turn_whose_own_start_changes_is_rejected() -> None:
    chat = [user(), answer("one"), answer("two")]
    reason, detail = rejected(SHORTENS, chat)
    assert reason == "mask_unresolved"
    assert "add {% generation %} blocks" in detail


@pytest.mark.parametrize(
    "template",
    [
        # Neither the header nor a probe's text can be found.
        REFUSES_TO_INVITE.replace("{{ m.content or '' }}", "{{ m.content | upper }}"),
        # The probe is refused, too.
        REFUSES_TO_INVITE.replace("{{ m.content or '' }}", "{{ m.content if m.content | length < 9 else m.no() }}"),
        # The text after which the probe is found is not the one that is printed.
        INVITES_MORE.replace("{{ m.role[0] }}", "{{ m.role[0] if m.content | length < 9 else 'b' }}"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_found_is_rejected(template: str) -> None:
    assert rejected(template, [user(), answer()])[0] == "mask_unresolved"


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        ("x[1:]", "cut by the template"),
        ("x[:-1]", "cut by the template"),
        ("x[0] + x", "nested"),
        ("x + x[-1]", "cut by the template"),
    ],
)
def test_marks_that_the_template_spoils_are_rejected(cut: str, says: str) -> None:
    template = f"{{% set x %}}{{% generation %}}text{{% endgeneration %}}{{% endset %}}{{{{ {cut} }}}}"
    reason, detail = rejected(template, [answer()])
    assert (reason, says in detail) == ("mask_unresolved", True)


# Blocks of one message: its thoughts, its text, or neither.
TWO_BLOCKS = (
    "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}"
    "{% if m.t %}{% generation %}({{ m.t }}){% endgeneration %}|{% endif %}"
    "{% if m.content %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}"
    "{% else %}{{ m.content }}{% endif %};{% endfor %}"
)

MOVES_A_MARK = (
    "{% for m in messages %}a:{% if loop.last %}{% generation %}{{ m.t }}|{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.t }}{% generation %}|{{ m.content }}{% endgeneration %}{% endif %};"
    "{% generation %}{% endgeneration %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("messages", "train_on", "expected"),
    [
        ([answer("A", t="T"), answer("B", t="U")], "assistant", "a:[(T)]|[A];a:[(U)]|[B];"),
        ([answer("A", t="T"), answer("B", t="U", train=False)], "assistant", "a:[(T)]|[A];a:(U)|B;"),
        ([answer("A", t="T", train=False), answer("B", t="U")], "assistant", "a:(T)|A;a:[(U)]|[B];"),
        ([answer("A", t="T"), answer("B"), answer("C", t="V")], "last_turn", "a:(T)|A;a:B;a:[(V)]|[C];"),
        # Messages that are trained alike need not be told apart, messages without a block not at all.
        (
            [answer("A"), answer(""), answer("C", t="V", train=False), answer(""), answer("E")],
            "assistant",
            "a:[A];a:;a:(V)|C;a:;a:[E];",
        ),
        (
            [answer("", train=False), answer("B"), answer("C", train=False), answer("D", train=False)],
            "assistant",
            "a:;a:[B];a:C;a:D;",
        ),
        ([answer("A", train=False), user(), answer("B"), user()], "assistant", "a:A;u:q;a:[B];u:q;"),
        # As many blocks as answers, and yet not one each.
        ([answer("A", t="T"), answer("", train=False)], "assistant", "a:[(T)]|[A];a:;"),
    ],
)
def test_blocks_of_several_messages(messages: list[dict[str, Any]], train_on: str, expected: str) -> None:
    assert trained(TWO_BLOCKS, messages, train_on) == [expected]


def test_where_no_block_stands_before_nothing_has_to_agree() -> None:
    counts_first = "{{ messages | length }}" + TWO_BLOCKS
    messages = [answer("", train=False), user(), answer("B")]
    assert trained(counts_first, messages) == ["3a:;u:q;a:[B];"]


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        # One block a message needs no further render, so it may change with what follows.
        (
            MARKED.replace("{{ m.content }}.", "{{ m.content if loop.last else m.content[0] }}"),
            [answer("one", train=False), answer("two")],
            "a:o;a:[two];",
        ),
        (MARKED, [answer("A", train=False), user(), answer("B")], "a:A.;u:q;a:[B.];"),
        # A block that printed nothing leaves fewer blocks than answers: these are counted by rendering.
        (
            MARKED.replace("}}.{%", "}}{%"),
            [answer(""), answer("B", train=False), answer("C")],
            "a:;a:B;a:[C];",
        ),
    ],
)
def test_one_block_a_message(template: str, messages: list[dict[str, Any]], expected: str) -> None:
    assert trained(template, messages) == [expected]


@pytest.mark.parametrize(
    "template",
    [
        # The number of blocks before, their places or the text between them change with what follows.
        TWO_BLOCKS.replace("{% if m.t %}", "{% if m.t and loop.last %}"),
        TWO_BLOCKS.replace("({{ m.t }})", "{{ m.t if loop.last else 'longer' }}"),
        TWO_BLOCKS.replace("({{ m.t }})", "{{ m.t if loop.last else 'S' }}"),
        TWO_BLOCKS.replace("{{ m.content }}{% endgen", "{{ m.content if loop.last else 'Z' }}{% endgen"),
        "{{ messages | length }}" + TWO_BLOCKS,
        # The text is the same, and other parts of it are marked.
        MOVES_A_MARK,
    ],
)
def test_blocks_that_depend_on_what_follows_are_rejected(template: str) -> None:
    messages = [answer("A", t="T", train=False), answer("B", t="U")]
    reason, detail = rejected(template, messages)
    assert reason == "mask_unresolved"
    assert "which generation block belongs to which message" in detail


FIRST, SECOND, THIRD = "\U00100000", "\U00100001", "\U00100002"


@pytest.mark.parametrize(
    ("question", "reply", "expected"),
    [
        (FIRST, "ok", "u:<<eos>>.\na:[ok.]\n"),
        (f"x{FIRST}y", f"{SECOND}", "u:x<<eos>>y.\na:[<<bos>>][.]\n"),
        (f"{FIRST}{FIRST}", f"a{SECOND}b{FIRST}", "u:<<eos>><<eos>>.\na:[a][<<bos>>][b][<<eos>>][.]\n"),
        ("x", "y", "u:x.\na:[y.]\n"),
        # No literal has this number: the character is text.
        (f"x{THIRD}", "y", f"u:x{THIRD}.\na:[y.]\n"),
        ("\U0010fffb", "y", "u:\U0010fffb.\na:[y.]\n"),
        (f"{THIRD}{FIRST}", "y", f"u:{THIRD}<<eos>>.\na:[y.]\n"),
    ],
)
def test_stand_ins_become_their_literal_text(question: str, reply: str, expected: str) -> None:
    assert trained(TURN, [user(question), answer(reply)], literals=["<eos>", "<bos>"]) == [expected]


def test_without_literals_no_character_stands_for_one() -> None:
    assert trained(TURN, [user(FIRST), answer(SECOND)]) == [f"u:{FIRST}.\na:[{SECOND}.]\n"]
