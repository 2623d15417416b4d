"""What of a process is stored in a template, and what is mapped from its files again."""

from __future__ import annotations

import pytest

from skerry.node.workers import template_regions
from skerry.node.workers.template_regions import BASE, SIZE, Call, NoTemplate

IMAGE = 4
DATA_AT = 0x200000


def region(addresses: str, letters: str, name: str = "", **sizes_kb: int) -> str:
    flags = sizes_kb.pop("flags", "")
    sizes = {"Rss": 0, "Anonymous": 0, "Swap": 0} | sizes_kb
    lines = [f"{addresses} {letters} 00001000 fe:00 17 {name}".rstrip()]
    lines += [f"{key}: {size:>10} kB" for key, size in sizes.items()]
    return "\n".join([*lines, f"VmFlags: rd mr {flags}"]) + "\n"


TEXT = region("400000-401000", "r-xp", "/usr/bin/python3", Rss=4)
DATA = region("500000-502000", "rw-p", "/usr/bin/python3", Rss=8, Anonymous=4)
RELOCATED = region("510000-511000", "r--p", "/usr/lib/x.so", Rss=4, Anonymous=4)
HEAP = region("600000-604000", "rw-p", "[heap]", Rss=16, Anonymous=16)
GUARD = region("700000-800000", "---p")
RESERVED = region("10000000-20000000", "rw-p")
STACK = region("7ffc00000000-7ffc00021000", "rw-p", "[stack]", Rss=8, Anonymous=8)
KERNEL = region("7f0000000000-7f0000002000", "r-xp", "[vdso]", Rss=8)
TRAMPOLINE = region(f"{BASE:x}-{BASE + SIZE:x}", "rw-p", Rss=4, Anonymous=4)


def plan(*regions: str, actions: dict[int, bytes] | None = None) -> template_regions.MemoryPlan:
    return template_regions.plan(
        template_regions.parse("".join(regions)),
        image=IMAGE,
        data_at=DATA_AT,
        heap_end=0x604000,
        actions=actions or {},
    )


def stored(made: template_regions.MemoryPlan) -> list[object]:
    return [call.arguments[1] for call in made.store]


def test_private_memory_is_stored_and_text_that_nobody_wrote_to_is_mapped_from_its_file() -> None:
    made = plan(TEXT, DATA, RELOCATED, HEAP, GUARD, RESERVED, TRAMPOLINE, KERNEL, STACK)
    assert stored(made) == [0x500000, 0x510000, 0x600000, 0x7FFC00000000]
    assert made.files == ["/usr/bin/python3"]
    sizes = [call.arguments[2] for call in made.store]
    assert made.size == DATA_AT + sum(size for size in sizes if isinstance(size, int))
    opened = made.restore.index(Call(template_regions.OPENAT, (-100, b"/usr/bin/python3", 0o2000000)))
    text, closed = made.restore[opened + 1 : opened + 3]
    assert text.arguments[0] == 0x400000
    assert text.arguments[4:] == (IMAGE + 1, 0x1000)
    assert closed == Call(template_regions.CLOSE, (IMAGE + 1,))


def test_a_copy_has_nothing_at_the_addresses_that_the_template_did_not_use() -> None:
    made = plan(TEXT, HEAP, TRAMPOLINE, KERNEL, STACK)
    unmapped = [call.arguments for call in made.restore if call.number == template_regions.MUNMAP]
    gaps = [(0x10000, 0x400000), (0x401000, 0x600000), (0x604000, BASE), (BASE + SIZE, 0x7F0000000000)]
    assert unmapped == [(start, end - start) for start, end in gaps]


def test_the_stack_is_copied_into_the_one_that_can_grow_after_everything_else_is_mapped() -> None:
    made = plan(HEAP, STACK, actions={10: b"x" * 32})
    assert made.restore[0] == Call(template_regions.BRK, (0x604000,))
    *_, signals, stack, closed = made.restore
    assert signals.number == template_regions.SIGACTION
    assert (stack.number, stack.arguments[1]) == (template_regions.PREAD, 0x7FFC00000000)
    assert closed == Call(template_regions.CLOSE, (IMAGE,))
    assert not [
        call
        for call in made.restore
        if call.number == template_regions.MMAP and call.arguments[0] == 0x7FFC00000000
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (region("900000-901000", "rw-s", "/dev/zero (deleted)"), "shares memory"),
        (region("900000-901000", "rw-s", "/tmp/shared"), "shares memory"),
        (region("900000-901000", "r-xp", "/usr/lib/old.so (deleted)"), "it maps /usr/lib/old.so"),
        (region("900000-901000", "rw-p", "/memfd:jit"), "it maps /memfd:jit"),
        (region("900000-901000", "rw-p", "anon_inode:[io_uring]"), "it maps anon_inode"),
        (region("900000-901000", "rw-p", flags="lo"), "cannot be copied"),
        (region("900000-901000", "rw-p", flags="wf"), "cannot be copied"),
        (region("900000-901000", "---p", Anonymous=4), "cannot read"),
        ("garbage\n", "cannot be read"),
        ("Rss: 4 kB\n", "cannot be read"),
    ],
)
def test_memory_that_a_fork_would_not_copy_prevents_a_template(line: str, reason: str) -> None:
    with pytest.raises(NoTemplate, match=reason):
        plan(line)
