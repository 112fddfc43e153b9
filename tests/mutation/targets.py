"""What is mutated, which tests must notice, and which faults nobody can notice.

Tests stand in the order they run in: the quick ones first, since one failure is enough.
"""

from __future__ import annotations

# Module -> file -> its tests.
TARGETS: dict[str, dict[str, tuple[str, ...]]] = {
    "masks": {"tasks/sft/chat/masks.py": ("tests/sft/test_mask_spans.py", "tests/sft/test_masks.py")},
    "packing": {
        "tasks/packing/bins.py": ("tests/packing/test_kernels.py", "tests/packing/test_packing.py"),
        "tasks/packing/histogram.py": ("tests/packing/test_kernels.py", "tests/packing/test_packing.py"),
        "tasks/packing/next_fit.py": ("tests/packing/test_kernels.py", "tests/packing/test_packing.py"),
    },
    "planning": {
        "tasks/sft/order/cuts.py": ("tests/sft/test_cuts.py",),
        "tasks/sft/order/fit.py": ("tests/sft/test_pack.py",),
        "tasks/sft/order/interval.py": ("tests/sft/test_pack.py",),
        "tasks/probes/shards.py": ("tests/probes/test_probe_shards.py",),
        "tasks/corpus/cut.py": ("tests/corpus/test_cut.py",),
    },
    "selection": {
        "tasks/corpus/selection/cutoff.py": ("tests/corpus/test_cutoff.py", "tests/corpus/test_selection.py"),
        "tasks/corpus/selection/md5.py": ("tests/corpus/test_md5.py",),
    },
    "tokens": {
        "tasks/probes/training/tokens.py": (
            "tests/probes/test_tokens.py",
            "tests/probes/test_token_format.py",
        )
    },
    "receipts": {"tasks/run/receipts.py": ("tests/run/test_receipts.py",)},
    "publish": {"tasks/run/publish.py": ("tests/run/test_publish.py",)},
    "locks": {
        "tasks/runtime/locks.py": ("tests/runtime/test_lock_rules.py", "tests/runtime/test_locks.py"),
        "tasks/storage/flock.py": ("tests/storage/test_flock.py", "tests/runtime/test_lock_rules.py"),
    },
    "ledger": {
        "schemas/run.py": ("tests/schemas/test_run.py",),
        "tasks/run/drift.py": ("tests/run/test_drift.py",),
    },
}

_WHEN = "when probes are merged bounds the memory; they are merged once more in the end"
_SUMS = "numpy 2 sums integers in 64 bits anyway"
_MERGE = "merged, held, rows = _merge([*merged.to_batches(), *held]), [], 0"

# File -> (line, the line with the fault) -> why no test can tell them apart; `*`: any fault of that line.
EQUIVALENT: dict[str, dict[tuple[str, str], str]] = {
    "tasks/sft/chat/masks.py": {
        (
            "upto = text if position == count - 1 else render.text(position + 1)",
            "upto = text if position == count - 0 else render.text(position + 1)",
        ): "the render of all messages is remembered",
        (
            "return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]",
            "return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if (start <= stop)]",
        ): "an empty span gives no piece",
        (
            "turn = [want and start <= i < end for i, want in enumerate(wanted[:end])]",
            "turn = [want and (start < i < end) for i, want in enumerate(wanted[:end])]",
        ): "a turn starts with a user message, which is never wanted",
        (
            'last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)',
            'last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=1)',
        ): "without an assistant message nothing is wanted, whichever is the last",
        (
            'last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)',
            'last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-2)',
        ): "without an assistant message nothing is wanted, whichever is the last",
        (
            'last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)',
            'last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-0)',
        ): "without an assistant message nothing is wanted, whichever is the last",
    },
    "tasks/probes/shards.py": {
        ("_HELD_PROBES = 1 << 18", "*"): _WHEN,
        ("rows = 0", "*"): _WHEN,
        ("rows += table.num_rows", "*"): _WHEN,
        ("if rows > max(_HELD_PROBES, merged.num_rows):", "*"): _WHEN,
        (_MERGE, _MERGE.replace(", 0", ", -1")): _WHEN,
        (_MERGE, _MERGE.replace(", 0", ", 1")): _WHEN,
    },
    "tasks/packing/next_fit.py": {
        ("total = int(lengths.sum(dtype=np.int64))", "total = int(lengths.sum())"): _SUMS,
        ("ends = np.cumsum(lengths, dtype=np.int64)", "ends = np.cumsum(lengths)"): _SUMS,
    },
    "tasks/packing/histogram.py": {
        (
            "small_tokens = tokens[half] - np.where(a > 0, tokens[a - 1], 0)",
            "small_tokens = tokens[half] - np.where(a > -1, tokens[a - 1], 0)",
        ): "as the next",
        (
            "small_tokens = tokens[half] - np.where(a > 0, tokens[a - 1], 0)",
            "small_tokens = tokens[half] - np.where((a >= 0), tokens[a - 1], 0)",
        ): "threshold 0 then gives 0, and threshold 1 what threshold 0 gave: no item is shorter, none of 0 counts",
    },
    "tasks/corpus/selection/md5.py": {
        (
            "num_words = (offset + num_digits + 3) // 4",
            "num_words = (offset + num_digits + 4) // 4",
        ): "one word more, of zeros, is added to the message: the same hash, later",
        (
            "skip = -raw.ctypes.data % 64 // 4",
            "skip = -raw.ctypes.data % 65 // 4",
        ): "where buffers begin changes only the speed",
    },
    "tasks/probes/training/tokens.py": {
        ("_ADDRESS_CACHE = 2**17", "*"): "how many addresses are remembered changes only the speed",
        (
            "block, num_bytes = _BLOCKS.get(ids[at], (-1, 0))",
            "block, num_bytes = _BLOCKS.get(ids[at], (-1, 1))",
        ): "an unknown head is refused before its number of bytes is used",
        (
            "block, num_bytes = _BLOCKS.get(ids[at], (-1, 0))",
            "block, num_bytes = _BLOCKS.get(ids[at], (-1, -1))",
        ): "an unknown head is refused before its number of bytes is used",
    },
    "tasks/storage/flock.py": {
        (
            "descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)",
            "descriptor = os.open(path, (os.O_RDONLY & os.O_CLOEXEC))",
        ): "Python sets O_CLOEXEC on every file it opens",
    },
    "tasks/run/publish.py": {
        (
            "if stale or path.name.startswith(TEMP_PREFIX):",
            "if stale:",
        ): "no published name begins as a temporary one does",
    },
    "tasks/run/receipts.py": {
        ("fault = error.errors(include_url=False)[0]", "fault = error.errors()[0]"): "the url is not printed",
        (
            "fault = error.errors(include_url=False)[0]",
            "fault = error.errors(include_url=True)[0]",
        ): "the url is not printed",
    },
}
