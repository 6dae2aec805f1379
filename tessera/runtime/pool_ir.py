"""The code of the thread pool in LLVM IR: where workers wait, join a launch and take chunks.

One 32-bit word, the gate, tells everything about the launch under way:

    bits  0- 9   active: workers inside
    bits 10-19   seats: how many more may enter
    bit  20      open
    bit  21      stopped: workers return
    bits 22-31   number of the launch, so that a worker enters each only once

A launch opens the gate, works through the chunks itself, closes the gate and waits until no worker
is inside.  A worker that wakes too late finds the gate closed, so nobody ever waits for one that is
asleep.  What is launched is a phase: jobs that need nothing of each other.  A thread that finds no chunk
of the first goes on to the next.  The phase may change only while the gate is closed and empty.

A worker that finds nothing to do spins a little, then sleeps on the gate: through a futex on Linux,
elsewhere by naps.
"""

from __future__ import annotations

import platform
import sys
from string import Template

from tessera.runtime.steps_ir import STEPS

SEAT, OPEN, STOPPED, LAUNCH = 1 << 10, 1 << 20, 1 << 21, 1 << 22
# Offsets in the block that all threads share; what is written often has a cache line of its own.
GATE, SLEEPERS, CALLER_WAITS, PHASE, SCRATCH, SPINS = 0, 64, 128, 192, 200, 208
BLOCK_BYTES = 256  # the last offset, to whole cache lines
LINE = 64  # bytes between counters that threads write
# An array object (NumPy's C ABI): a head, which ends with the type, the address of the data, five words
# more, and flags.
HEAD = object.__basicsize__
TYPE, FLAGS = HEAD - 8, HEAD + 48
TIDY = 0x101  # bits of the flags: elements in order without gaps, and aligned

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # numbers of the system call
_X86, _ARM = ("void @llvm.x86.sse2.pause", "", ""), ("void @llvm.aarch64.isb", "i32", "i32 15")
_PAUSE = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}
_NAP = {"win32": ("void @Sleep", 1)}  # milliseconds; elsewhere usleep, in microseconds


def pool_ir(futex: bool = True, processor: str = platform.machine()) -> str:
    """The module of the pool for a processor and this system; without futex, workers nap."""
    number = _FUTEX.get(processor) if sys.platform == "linux" and futex else None
    pause, kinds, arguments = _PAUSE.get(processor, ("", "", ""))
    nap, time = _NAP.get(sys.platform, ("i32 @usleep", 500))
    template = _POOL + STEPS + (_SLEEP_BY_NAPS if number is None else _SLEEP_ON_FUTEX)
    return Template(template).substitute(
        declare_pause=f"declare {pause}({kinds})" if pause else "",
        call_pause=f"call {pause}({arguments})" if pause else "",
        futex=number, futex_wait=128, futex_wake=129,  # the forms that stay in this process
        nap=nap, nap_time=time,
        sleepers=SLEEPERS, caller_waits=CALLER_WAITS, phase=PHASE, scratch=SCRATCH, spins=SPINS,
        line=LINE, head=HEAD, type=TYPE, flags=FLAGS, tidy=TIDY,
        active_mask=SEAT - 1, seat=SEAT, seat_mask=OPEN - SEAT, seat_shift=10, enter=1 - SEAT,
        open=OPEN, close=~OPEN, active_or_open=OPEN | SEAT - 1, stopped=STOPPED,
        number_mask=-LAUNCH, number_or_stopped=-LAUNCH | STOPPED, launch=LAUNCH,
    )  # fmt: skip


_SLEEP_ON_FUTEX = """
declare i64 @syscall(i64, ...)

define internal void @sleep(ptr %word, i32 %value) {
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i64 $futex_wait, i32 %value, ptr null, ptr null, i64 0)
  ret void
}

define internal void @wake(ptr %word, i32 %most) {
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i64 $futex_wake, i32 %most, ptr null, ptr null, i64 0)
  ret void
}
"""  # noqa: E501
_SLEEP_BY_NAPS = """
declare $nap(i32)

define internal void @sleep(ptr %word, i32 %value) {
  call $nap(i32 $nap_time)
  ret void
}

define internal void @wake(ptr %word, i32 %most) {
  ret void
}
"""
_POOL = """
$declare_pause
declare i64 @llvm.smin.i64(i64, i64)
declare i32 @llvm.smin.i32(i32, i32)

%job = type { ptr, ptr, i64, i64, i32 }  ; kernel, sizes, count, chunk, seats
; Calls, how many, the most parameters that one has; cells to check, how many, the type of arrays;
; the most calls in a phase.
%series = type { ptr, i64, i64, ptr, i64, ptr, i64 }
; Job, parameters, how many; for the first call of a phase: how many calls it has, and seats.
%call = type { ptr, ptr, i64, i64, i64 }
%parameter = type { i64, i64 }  ; cell, offset
%phase = type { ptr, i64, ptr, i64, ptr }  ; calls, how many; addresses, how many a call; counters

; Run a whole job on this thread.
define void @alone(ptr %job, ptr %parameters, ptr %scratch) {
  %kernel = load ptr, ptr %job
  %sizes_at = getelementptr %job, ptr %job, i32 0, i32 1
  %sizes = load ptr, ptr %sizes_at
  %count_at = getelementptr %job, ptr %job, i32 0, i32 2
  %count = load i64, ptr %count_at
  call void %kernel(ptr %parameters, ptr %sizes, i64 0, i64 %count, ptr %scratch)
  ret void
}

; Take chunks of a job until none is left.
define internal void @chunks(ptr %job, ptr %parameters, ptr %next, ptr %scratch) {
entry:
  %kernel = load ptr, ptr %job
  %sizes_at = getelementptr %job, ptr %job, i32 0, i32 1
  %sizes = load ptr, ptr %sizes_at
  %count_at = getelementptr %job, ptr %job, i32 0, i32 2
  %count = load i64, ptr %count_at
  %chunk_at = getelementptr %job, ptr %job, i32 0, i32 3
  %chunk = load i64, ptr %chunk_at
  br label %more
more:
  %begin = atomicrmw add ptr %next, i64 %chunk monotonic
  %any = icmp slt i64 %begin, %count
  br i1 %any, label %chunk_taken, label %done
chunk_taken:
  %far = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %far, i64 %count)
  call void %kernel(ptr %parameters, ptr %sizes, i64 %begin, i64 %end, ptr %scratch)
  br label %more
done:
  ret void
}

; Take chunks of the jobs of a phase, one job after another, until none is left.
define internal void @take(ptr %pool, i64 %seat) {
entry:
  %phase_at = getelementptr i8, ptr %pool, i64 $phase
  %phase = load ptr, ptr %phase_at
  %calls = load ptr, ptr %phase
  %count_at = getelementptr %phase, ptr %phase, i32 0, i32 1
  %count = load i64, ptr %count_at
  %addresses_at = getelementptr %phase, ptr %phase, i32 0, i32 2
  %addresses = load ptr, ptr %addresses_at
  %most_at = getelementptr %phase, ptr %phase, i32 0, i32 3
  %most = load i64, ptr %most_at
  %counters_at = getelementptr %phase, ptr %phase, i32 0, i32 4
  %counters = load ptr, ptr %counters_at
  %table_at = getelementptr i8, ptr %pool, i64 $scratch
  %table = load ptr, ptr %table_at
  %scratch_at = getelementptr ptr, ptr %table, i64 %seat
  %scratch = load ptr, ptr %scratch_at
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_after, %do ]
  %any = icmp slt i64 %i, %count
  br i1 %any, label %do, label %done
do:
  %call = getelementptr %call, ptr %calls, i64 %i
  %job = load ptr, ptr %call
  %before = mul i64 %i, %most
  %parameters = getelementptr ptr, ptr %addresses, i64 %before
  %counted = mul i64 %i, $line
  %counter = getelementptr i8, ptr %counters, i64 %counted
  call void @chunks(ptr %job, ptr %parameters, ptr %counter, ptr %scratch)
  %i_after = add i64 %i, 1
  br label %next
done:
  ret void
}

; The life of a worker.
define void @work(ptr %pool) {
entry:
  %sleepers = getelementptr i8, ptr %pool, i64 $sleepers
  %caller_waits = getelementptr i8, ptr %pool, i64 $caller_waits
  %spins_at = getelementptr i8, ptr %pool, i64 $spins
  %last = alloca i32
  %spun = alloca i64
  store i32 1, ptr %last  ; no launch has this number
  store i64 0, ptr %spun
  br label %look
look:
  %gate = load atomic i32, ptr %pool acquire, align 4
  %stop_bit = and i32 %gate, $stopped
  %stopped = icmp ne i32 %stop_bit, 0
  br i1 %stopped, label %end, label %running
running:
  %number = and i32 %gate, $number_mask
  %done_last = load i32, ptr %last
  %new = icmp ne i32 %number, %done_last
  %open_bit = and i32 %gate, $open
  %open = icmp ne i32 %open_bit, 0
  %seats = and i32 %gate, $seat_mask
  %free = icmp ne i32 %seats, 0
  %new_open = and i1 %open, %new
  %may = and i1 %new_open, %free
  br i1 %may, label %enter, label %idle
enter:
  %gate_inside = add i32 %gate, $enter
  %swap = cmpxchg ptr %pool, i32 %gate, i32 %gate_inside acquire monotonic
  %entered = extractvalue { i32, i1 } %swap, 1
  br i1 %entered, label %inside, label %look
inside:
  %seat = lshr i32 %seats, $seat_shift
  %seat_wide = zext i32 %seat to i64
  call void @take(ptr %pool, i64 %seat_wide)
  store i32 %number, ptr %last
  store i64 0, ptr %spun
  %before = atomicrmw sub ptr %pool, i32 1 seq_cst
  %left = and i32 %before, $active_or_open
  %last_out = icmp eq i32 %left, 1
  br i1 %last_out, label %out_last, label %look
out_last:
  %waits = load atomic i32, ptr %caller_waits seq_cst, align 4
  %asleep = icmp ne i32 %waits, 0
  br i1 %asleep, label %tell, label %look
tell:
  store atomic i32 0, ptr %caller_waits seq_cst, align 4
  call void @wake(ptr %caller_waits, i32 1)
  br label %look
idle:
  %spun_before = load i64, ptr %spun
  %spun_now = add i64 %spun_before, 1
  store i64 %spun_now, ptr %spun
  %spins = load atomic i64, ptr %spins_at monotonic, align 8
  %spin = icmp sle i64 %spun_now, %spins
  br i1 %spin, label %pause, label %doze
pause:
  $call_pause
  br label %look
doze:
  ; Whoever opens the gate sees this count, or the futex sees the new gate and returns at once.
  %awake = atomicrmw add ptr %sleepers, i32 1 seq_cst
  call void @sleep(ptr %pool, i32 %gate)
  %slept = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  store i64 0, ptr %spun
  br label %look
end:
  ret void
}

; Run a phase on this thread and on as many workers as it has seats.
define internal void @together(ptr %pool, ptr %phase, i32 %seats) {
entry:
  %phase_at = getelementptr i8, ptr %pool, i64 $phase
  store ptr %phase, ptr %phase_at
  %gate = load atomic i32, ptr %pool monotonic, align 4
  %kept = and i32 %gate, $number_or_stopped
  %number = add i32 %kept, $launch
  %seat_bits = mul i32 %seats, $seat
  %numbered = or i32 %number, %seat_bits
  %opened = or i32 %numbered, $open
  store atomic i32 %opened, ptr %pool seq_cst, align 4
  %sleepers = getelementptr i8, ptr %pool, i64 $sleepers
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %most = call i32 @llvm.smin.i32(i32 %asleep, i32 %seats)
  %any = icmp sgt i32 %most, 0
  br i1 %any, label %rouse, label %take
rouse:
  call void @wake(ptr %pool, i32 %most)
  br label %take
take:
  call void @take(ptr %pool, i64 0)
  %open = atomicrmw and ptr %pool, i32 $close seq_cst
  %caller_waits = getelementptr i8, ptr %pool, i64 $caller_waits
  %spins_at = getelementptr i8, ptr %pool, i64 $spins
  %spins = load i64, ptr %spins_at
  br label %look
look:
  %spun = phi i64 [ 0, %take ], [ %spun_more, %pause ]
  %now = load atomic i32, ptr %pool acquire, align 4
  %active = and i32 %now, $active_mask
  %empty = icmp eq i32 %active, 0
  br i1 %empty, label %end, label %busy
busy:
  %spun_more = add i64 %spun, 1
  %spin = icmp sle i64 %spun_more, %spins
  br i1 %spin, label %pause, label %doze
pause:
  $call_pause
  br label %look
doze:
  ; The last worker out sees that this thread waits, or this thread sees that nobody is inside.
  store atomic i32 1, ptr %caller_waits seq_cst, align 4
  %then = load atomic i32, ptr %pool seq_cst, align 4
  %still = and i32 %then, $active_mask
  %all_out = icmp eq i32 %still, 0
  br i1 %all_out, label %end_awake, label %sleep
sleep:
  call void @sleep(ptr %caller_waits, i32 1)
  br label %doze
end_awake:
  store atomic i32 0, ptr %caller_waits seq_cst, align 4
  br label %end
end:
  ret void
}

; Run one job on this thread and on as many workers as it has seats.
define void @launch(ptr %pool, ptr %job, ptr %parameters) {
  %call = alloca %call
  store ptr %job, ptr %call
  %counter = alloca i8, i64 $line, align $line
  store i64 0, ptr %counter
  %phase = alloca %phase
  store ptr %call, ptr %phase
  %count_at = getelementptr %phase, ptr %phase, i32 0, i32 1
  store i64 1, ptr %count_at
  %addresses_at = getelementptr %phase, ptr %phase, i32 0, i32 2
  store ptr %parameters, ptr %addresses_at
  %most_at = getelementptr %phase, ptr %phase, i32 0, i32 3
  store i64 0, ptr %most_at
  %counters_at = getelementptr %phase, ptr %phase, i32 0, i32 4
  store ptr %counter, ptr %counters_at
  %seats_at = getelementptr %job, ptr %job, i32 0, i32 4
  %seats = load i32, ptr %seats_at
  call void @together(ptr %pool, ptr %phase, i32 %seats)
  ret void
}

; The addresses of the parameters of a call.  One is so many bytes after the data of the array in a cell.
define internal void @fill(ptr %call, ptr %cells, ptr %table) {
entry:
  %parameters_at = getelementptr %call, ptr %call, i32 0, i32 1
  %parameters = load ptr, ptr %parameters_at
  %arity_at = getelementptr %call, ptr %call, i32 0, i32 2
  %arity = load i64, ptr %arity_at
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k_after, %parameter ]
  %more = icmp slt i64 %k, %arity
  br i1 %more, label %parameter, label %done
parameter:
  %parameter_at = getelementptr %parameter, ptr %parameters, i64 %k
  %cell = load i64, ptr %parameter_at
  %offset_at = getelementptr %parameter, ptr %parameter_at, i32 0, i32 1
  %offset = load i64, ptr %offset_at
  %array_at = getelementptr ptr, ptr %cells, i64 %cell
  %array = load ptr, ptr %array_at
  %data_at = getelementptr i8, ptr %array, i64 $head
  %data = load ptr, ptr %data_at
  %address = getelementptr i8, ptr %data, i64 %offset
  %slot = getelementptr ptr, ptr %table, i64 %k
  store ptr %address, ptr %slot
  %k_after = add i64 %k, 1
  br label %next
done:
  ret void
}

; Run phases one after another.
; When a cell to check holds no array in order, nothing runs and the result is 1.
define i32 @series(ptr %pool, ptr %series, ptr %cells, ptr %scratch) noinline {
entry:
  %calls = load ptr, ptr %series
  %count_at = getelementptr %series, ptr %series, i32 0, i32 1
  %count = load i64, ptr %count_at
  %most_at = getelementptr %series, ptr %series, i32 0, i32 2
  %most = load i64, ptr %most_at
  %checks_at = getelementptr %series, ptr %series, i32 0, i32 3
  %checks = load ptr, ptr %checks_at
  %checked_at = getelementptr %series, ptr %series, i32 0, i32 4
  %checked = load i64, ptr %checked_at
  %wanted_at = getelementptr %series, ptr %series, i32 0, i32 5
  %wanted = load ptr, ptr %wanted_at
  %widest_at = getelementptr %series, ptr %series, i32 0, i32 6
  %widest = load i64, ptr %widest_at
  %slots = mul i64 %most, %widest
  %table = alloca ptr, i64 %slots
  %counted = mul i64 %widest, $line
  %counters = alloca i8, i64 %counted, align $line
  %phase = alloca %phase
  %length_at = getelementptr %phase, ptr %phase, i32 0, i32 1
  %addresses_at = getelementptr %phase, ptr %phase, i32 0, i32 2
  store ptr %table, ptr %addresses_at
  %stride_at = getelementptr %phase, ptr %phase, i32 0, i32 3
  store i64 %most, ptr %stride_at
  %counters_at = getelementptr %phase, ptr %phase, i32 0, i32 4
  store ptr %counters, ptr %counters_at
  br label %look
look:
  %c = phi i64 [ 0, %entry ], [ %c_after, %tidy ]
  %left = icmp slt i64 %c, %checked
  br i1 %left, label %check, label %next
check:
  %check_at = getelementptr i64, ptr %checks, i64 %c
  %check_cell = load i64, ptr %check_at
  %object_at = getelementptr ptr, ptr %cells, i64 %check_cell
  %object = load ptr, ptr %object_at
  %type_at = getelementptr i8, ptr %object, i64 $type
  %type = load ptr, ptr %type_at
  %is_array = icmp eq ptr %type, %wanted
  br i1 %is_array, label %is_one, label %refuse
is_one:
  %flags_at = getelementptr i8, ptr %object, i64 $flags
  %flags = load i32, ptr %flags_at
  %bits = and i32 %flags, $tidy
  %in_order = icmp eq i32 %bits, $tidy
  br i1 %in_order, label %tidy, label %refuse
tidy:
  %c_after = add i64 %c, 1
  br label %look
refuse:
  ret i32 1
next:
  %i = phi i64 [ 0, %look ], [ %i_after, %after ]
  %any = icmp slt i64 %i, %count
  br i1 %any, label %begin, label %end
begin:
  %first = getelementptr %call, ptr %calls, i64 %i
  %members_at = getelementptr %call, ptr %first, i32 0, i32 3
  %members = load i64, ptr %members_at
  %seats_at = getelementptr %call, ptr %first, i32 0, i32 4
  %seats = load i64, ptr %seats_at
  %i_after = add i64 %i, %members
  %single = icmp eq i64 %seats, 0
  br label %member
member:
  %j = phi i64 [ 0, %begin ], [ %j_after, %filled ]
  %some = icmp slt i64 %j, %members
  br i1 %some, label %prepare, label %ready
prepare:
  %call = getelementptr %call, ptr %first, i64 %j
  %before = mul i64 %j, %most
  %own = getelementptr ptr, ptr %table, i64 %before
  call void @fill(ptr %call, ptr %cells, ptr %own)
  %counter_at = mul i64 %j, $line
  %counter = getelementptr i8, ptr %counters, i64 %counter_at
  store i64 0, ptr %counter
  br i1 %single, label %by_caller, label %filled
by_caller:
  %job = load ptr, ptr %call
  call void @alone(ptr %job, ptr %own, ptr %scratch)
  br label %filled
filled:
  %j_after = add i64 %j, 1
  br label %member
ready:
  br i1 %single, label %after, label %by_all
by_all:
  store ptr %first, ptr %phase
  store i64 %members, ptr %length_at
  %workers = trunc i64 %seats to i32
  call void @together(ptr %pool, ptr %phase, i32 %workers)
  br label %after
after:
  br label %next
end:
  ret i32 0
}

; Let workers return.
define void @stop(ptr %pool) {
  %before = atomicrmw or ptr %pool, i32 $stopped seq_cst
  call void @wake(ptr %pool, i32 2147483647)
  ret void
}

; Pause n times, to learn how long a pause is.
define void @pauses(i64 %n) {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %more, %look ]
  $call_pause
  %more = add i64 %i, 1
  %done = icmp sge i64 %more, %n
  br i1 %done, label %end, label %look
end:
  ret void
}
"""
