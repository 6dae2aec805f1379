"""Memory for results in LLVM IR: an allocator for NumPy's arrays that keeps what is freed.

A block has its data at a cache line, and before it what is known of the block: where the memory begins that
another allocator gave, how many bytes it is for, and the next free block of its slot.  Free blocks of one
size make a list, and a table has a slot for each list.  Where a size has its slot is one of a few places
side by side; while other sizes have them all, blocks of it are not kept.
"""

from __future__ import annotations

from string import Template

SLOTS = 1024  # of the table, a power of two
PLACES = 8  # where the slot of a size may be
LINE = 64  # bytes of a cache line
_BEFORE = 24  # bytes of a block before its data
# Offsets in the memory of an allocator.
LOCK, KEPT, MOST, BELOW, TABLE = 0, 8, 16, 24, 64
BYTES = TABLE + 16 * (SLOTS + PLACES)
FUNCTIONS = ("take", "zeroed", "resized", "give", "clear")
_SPREAD = 0x9E3779B97F4A7C15  # an odd number whose products have many different high bits
_SHIFT = 64 - (SLOTS.bit_length() - 1)


def first_place(size: int) -> int:
    """The number of the first slot that blocks of a size may have."""
    return size * _SPREAD % (1 << 64) >> _SHIFT


def blocks_ir() -> str:
    """The module of the allocator."""
    return Template(_BLOCKS).substitute(
        kept=KEPT, most=MOST, below=BELOW, table=TABLE, slots=SLOTS + PLACES, places=PLACES,
        room=_BEFORE + LINE - 1, mask=-LINE, spread=_SPREAD - (1 << 64), shift=_SHIFT,
    )  # fmt: skip


_BLOCKS = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)

%below = type { ptr, ptr, ptr, ptr, ptr }  ; NumPy's own: context, malloc, calloc, realloc, free
%slot = type { i64, ptr }  ; size, first free block

define internal void @lock(ptr %all) {
entry:
  br label %try
try:
  %swap = cmpxchg ptr %all, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %done, label %try
done:
  ret void
}

define internal void @unlock(ptr %all) {
  store atomic i64 0, ptr %all release, align 8
  ret void
}

; The slot with free blocks of a size; if it may be a new one, else the first that is free; null if there is none.
define internal ptr @slot(ptr %all, i64 %size, i1 %or_new) {
entry:
  %spread = mul i64 %size, $spread
  %number = lshr i64 %spread, $shift
  %table = getelementptr i8, ptr %all, i64 $table
  %first = getelementptr %slot, ptr %table, i64 %number
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_after, %other ]
  %free = phi ptr [ null, %entry ], [ %free_after, %other ]
  %more = icmp ult i64 %i, $places
  br i1 %more, label %one, label %none
one:
  %slot = getelementptr %slot, ptr %first, i64 %i
  %held = load i64, ptr %slot
  %blocks_at = getelementptr %slot, ptr %slot, i32 0, i32 1
  %blocks = load ptr, ptr %blocks_at
  %empty = icmp eq ptr %blocks, null
  %same = icmp eq i64 %held, %size
  %any = xor i1 %empty, true
  %found = and i1 %same, %any
  br i1 %found, label %done, label %other
other:
  %unset = icmp eq ptr %free, null
  %better = and i1 %empty, %unset
  %free_after = select i1 %better, ptr %slot, ptr %free
  %i_after = add i64 %i, 1
  br label %next
done:
  ret ptr %slot
none:
  %new = select i1 %or_new, ptr %free, ptr null
  ret ptr %new
}

; Where a block, known by its data, keeps the begin of its memory, its size, and the block after it.
define internal ptr @begin_at(ptr %data) {
  %at = getelementptr i8, ptr %data, i64 -8
  ret ptr %at
}

define internal ptr @size_at(ptr %data) {
  %at = getelementptr i8, ptr %data, i64 -16
  ret ptr %at
}

define internal ptr @next_at(ptr %data) {
  %at = getelementptr i8, ptr %data, i64 -24
  ret ptr %at
}

define internal void @kept(ptr %all, i64 %more) {
  %at = getelementptr i8, ptr %all, i64 $kept
  %before = load i64, ptr %at
  %after = add i64 %before, %more
  store i64 %after, ptr %at
  ret void
}

; Let go of a block.
define internal void @drop(ptr %all, ptr %data) {
  %below = getelementptr i8, ptr %all, i64 $below
  %context = load ptr, ptr %below
  %free_at = getelementptr %below, ptr %below, i32 0, i32 4
  %free = load ptr, ptr %free_at
  %begin_at = call ptr @begin_at(ptr %data)
  %begin = load ptr, ptr %begin_at
  %size_at = call ptr @size_at(ptr %data)
  %size = load i64, ptr %size_at
  %whole = add i64 %size, $room
  call void %free(ptr %context, ptr %begin, i64 %whole)
  ret void
}

define internal ptr @fresh(ptr %all, i64 %size) {
entry:
  %whole = add i64 %size, $room
  %fits = icmp ugt i64 %whole, %size
  br i1 %fits, label %ask, label %none
ask:
  %below = getelementptr i8, ptr %all, i64 $below
  %context = load ptr, ptr %below
  %malloc_at = getelementptr %below, ptr %below, i32 0, i32 1
  %malloc = load ptr, ptr %malloc_at
  %begin = call ptr %malloc(ptr %context, i64 %whole)
  %got = icmp ne ptr %begin, null
  br i1 %got, label %lay_out, label %none
lay_out:
  %number = ptrtoint ptr %begin to i64
  %raised = add i64 %number, $room
  %aligned = and i64 %raised, $mask
  %data = inttoptr i64 %aligned to ptr
  %begin_at = call ptr @begin_at(ptr %data)
  store ptr %begin, ptr %begin_at
  %size_at = call ptr @size_at(ptr %data)
  store i64 %size, ptr %size_at
  ret ptr %data
none:
  ret ptr null
}

; Memory for so many bytes, null if there is none.
define ptr @take(ptr %all, i64 %size) {
entry:
  call void @lock(ptr %all)
  %slot = call ptr @slot(ptr %all, i64 %size, i1 false)
  %found = icmp ne ptr %slot, null
  br i1 %found, label %again, label %new
again:
  %first_at = getelementptr %slot, ptr %slot, i32 0, i32 1
  %first = load ptr, ptr %first_at
  %next_at = call ptr @next_at(ptr %first)
  %next = load ptr, ptr %next_at
  store ptr %next, ptr %first_at
  %less = sub i64 0, %size
  call void @kept(ptr %all, i64 %less)
  call void @unlock(ptr %all)
  ret ptr %first
new:
  call void @unlock(ptr %all)
  %data = call ptr @fresh(ptr %all, i64 %size)
  %got = icmp ne ptr %data, null
  br i1 %got, label %done, label %short
short:  ; what is kept may be in the way
  call void @clear(ptr %all)
  %last = call ptr @fresh(ptr %all, i64 %size)
  ret ptr %last
done:
  ret ptr %data
}

define ptr @zeroed(ptr %all, i64 %count, i64 %each) {
entry:
  %size = mul i64 %count, %each
  %data = call ptr @take(ptr %all, i64 %size)
  %got = icmp ne ptr %data, null
  br i1 %got, label %fill, label %done
fill:
  call void @llvm.memset.p0.i64(ptr %data, i8 0, i64 %size, i1 false)
  br label %done
done:
  ret ptr %data
}

define ptr @resized(ptr %all, ptr %data, i64 %size) {
entry:
  %new = call ptr @take(ptr %all, i64 %size)
  %got = icmp ne ptr %new, null
  %had = icmp ne ptr %data, null
  %both = and i1 %got, %had
  br i1 %both, label %move, label %done
move:
  %size_at = call ptr @size_at(ptr %data)
  %before = load i64, ptr %size_at
  %common = call i64 @llvm.umin.i64(i64 %before, i64 %size)
  call void @llvm.memcpy.p0.p0.i64(ptr %new, ptr %data, i64 %common, i1 false)
  call void @give(ptr %all, ptr %data, i64 %before)
  br label %done
done:
  ret ptr %new
}

; Keep a block for later, or let go of it.
define void @give(ptr %all, ptr %data, i64 %unused) {
entry:
  %some = icmp ne ptr %data, null
  br i1 %some, label %look, label %done
look:
  %size_at = call ptr @size_at(ptr %data)
  %size = load i64, ptr %size_at
  call void @lock(ptr %all)
  %slot = call ptr @slot(ptr %all, i64 %size, i1 true)
  %free = icmp ne ptr %slot, null
  %kept_at = getelementptr i8, ptr %all, i64 $kept
  %kept = load i64, ptr %kept_at
  %after = add i64 %kept, %size
  %most_at = getelementptr i8, ptr %all, i64 $most
  %most = load i64, ptr %most_at
  %little = icmp ule i64 %after, %most
  %keep = and i1 %free, %little
  br i1 %keep, label %put, label %let_go
put:
  store i64 %after, ptr %kept_at
  store i64 %size, ptr %slot
  %first_at = getelementptr %slot, ptr %slot, i32 0, i32 1
  %first = load ptr, ptr %first_at
  %next_at = call ptr @next_at(ptr %data)
  store ptr %first, ptr %next_at
  store ptr %data, ptr %first_at
  call void @unlock(ptr %all)
  ret void
let_go:
  call void @unlock(ptr %all)
  call void @drop(ptr %all, ptr %data)
  ret void
done:
  ret void
}

; Let go of all that is kept.
define void @clear(ptr %all) {
entry:
  %table = getelementptr i8, ptr %all, i64 $table
  call void @lock(ptr %all)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_after, %emptied ]
  %more = icmp ult i64 %i, $slots
  br i1 %more, label %one, label %done
one:
  %slot = getelementptr %slot, ptr %table, i64 %i
  %size = load i64, ptr %slot
  %less = sub i64 0, %size
  %first_at = getelementptr %slot, ptr %slot, i32 0, i32 1
  br label %block
block:
  %data = load ptr, ptr %first_at
  %any = icmp ne ptr %data, null
  br i1 %any, label %release, label %emptied
release:
  %next_at = call ptr @next_at(ptr %data)
  %after = load ptr, ptr %next_at
  store ptr %after, ptr %first_at
  call void @kept(ptr %all, i64 %less)
  call void @drop(ptr %all, ptr %data)
  br label %block
emptied:
  %i_after = add i64 %i, 1
  br label %next
done:
  call void @unlock(ptr %all)
  ret void
}
"""  # noqa: E501
