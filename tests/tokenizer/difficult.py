"""Texts that tokenizers lose: the same 2,000 under every Python."""

from __future__ import annotations

import random
import unicodedata

_SPECIAL = (
    *(chr(code) for code in range(32)),
    "\x7f", "\x80", "\x85", "\xa0", "\xad", "\u061c", "\u180e", "\u2000", "\u2003", "\u200b", "\u200c", "\u200d",
    "\u200e", "\u200f", "\u2028", "\u2029", "\u202e", "\u2066", "\u3000", "\ufeff", "\ufffc", "\ufffd", "\ufffe",
    "\ue000", "\U000e0001", "\U0010fffd", "\U0010ffff",
)  # fmt: skip
_PIECES = (
    "def f(x):\n    return x", "don't", "DON'T we'Ll", "naïve", "cafe\u0301", "A\u030a\u0323", "e\u0301\u0327\u0302",
    "\u1100\u1161\u11a8", "각", "ﬁ ﬂ Ⅻ ½ ² ①", "Å Ω K", "日本語のテキスト", "漢字仮名交じり文", "中文字符，标点。",
    "한국어 문장",
    "שלום עולם", "مرحبا بالعالم", "ा की हिन्दी", "ไทยไม่มีช่องว่าง", "\u0e33", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "1️⃣",
    "3.14159", "1234567", "１２３", "٣٤٥", "12,345.67", "x²+y³", "http://a.b/c?d=e&f=%20", "<|im_start|>", "<|endof",
    "##", "#!", "\\u0041\\n", "Ġhello", "Ċ", "▁word", "[UNK]", "<unk>", "\ud7ff", "ß ẞ ı İ", "ǅ ŉ", "\u0344",
    "…—–‘’“”",
)  # fmt: skip
_BREAKS = (
    "",
    " ",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\n\n",
    "\r\r\n",
    " \n ",
    " " * 40,
    "\t" * 9,
    "\n" * 17,
)


def difficult_texts(count: int = 2000, seed: int = 0) -> list[str]:
    """Return texts of controls, combining marks, emoji, scripts, digits, spaces, line breaks and any characters."""
    rng = random.Random(seed)
    texts = ["", " ", "\n", "\0", "\ufeff", " " * 1000, "a" * 1000, "\0\0\0", "\r\n\r\n"]
    while len(texts) < count:
        pieces = []
        for _ in range(rng.randint(1, 30)):
            kind = rng.random()
            if kind < 0.5:
                pieces.append(rng.choice(_PIECES))
            elif kind < 0.7:
                pieces.append(rng.choice(_SPECIAL) * rng.randint(1, 3))
            else:
                pieces.append("".join(_any_character(rng) for _ in range(rng.randint(1, 6))))
            pieces.append(rng.choice(_BREAKS))
        texts.append("".join(pieces))
    return texts


def _any_character(rng: random.Random) -> str:
    """Return a character of Unicode 3.2: the normal form of a later one depends on the version that a library has."""
    while True:
        code = rng.randrange(0x110000)
        if not 0xD800 <= code < 0xE000 and unicodedata.ucd_3_2_0.category(chr(code)) != "Cn":
            return chr(code)
