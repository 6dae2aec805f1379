"""The steps of a loop in LLVM IR: what one step does is data, and one function walks through it.

A loop is lists of items.  Everything that an item touches is reached through a variable, a word that holds an
address.  Between steps the variables of what the loop carries are permuted, so that what one step made is
what the next one reads, and nothing is copied.

    moves    to, from, offset, stride: the variable `to` becomes that in `from` + offset + row * stride
    items    0 a series of kernels, over cells; 1 a copy of a box; 2 moves; 3 a loop; 4 one of two lists;
             5 a check; 6 a list that is timed
"""

from __future__ import annotations

SERIES, COPY, MOVES, LOOP, CHOICE, CHECK, TIMED = range(7)  # kinds of items
# Words of each record; a loop and a copy are as the types below say.
MOVE_WORDS, ITEM_WORDS, DIM_WORDS = 4, 3, 3

# Words of a tally: how often it is not timed next, how often it ran since it was, how often it ran, what was
# timed with its weight, the weights, what the clock itself takes, its number, and the log.
TALLY = ("due", "since", "runs", "total", "weight", "cost", "number", "log")

# Nanoseconds of work between two timed runs of one list: the clock takes some 50, so 2% of them.
_PATIENCE = 2500
_INTERRUPTED = 500_000  # nanoseconds more than usual, which are the system's
_MOST_SKIPPED = 63  # runs of a list between two that are timed

# A part of the module of the pool, which has `series`.
STEPS = (
    """
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)

%move = type { ptr, ptr, i64, i64 }  ; to, from, offset, stride
%item = type { i64, ptr, ptr }  ; kind, what it is, cells of a series
; From, offset, to, offset, bytes that lie together, axes, how many.
%copy = type { ptr, i64, ptr, i64, i64, ptr, i64 }
%dim = type { i64, i64, i64 }  ; size, stride of what is read, stride of what is written
%list = type { ptr, i64 }  ; items, how many
%choice = type { ptr, i64, %list, %list }  ; variable of the condition, offset; items if it holds, if not
; Moves, how many; items of a test, its result as in a choice, or none; items of a step; variables that are
; permuted, where each gets its value from, room for them, how many; steps, whether the last row comes first;
; what all loops of a call share.
%loop = type { ptr, i64, %list, ptr, i64, %list, ptr, ptr, ptr, i64, i64, i64, ptr }
; Steps until Python is asked, which says how many more there may be, or 0 to stop; the check that failed.
%control = type { i64, ptr, i64 }
%check = type { ptr, i64, i64, ptr }  ; variable of what should hold, offset; its number; the control
%timed = type { ptr, %list, ptr }  ; the clock, items, their tally
%tally = type { i64, i64, i64, i64, i64, i64, i64, ptr }  ; as TALLY says
%log = type { i64, i64, ptr }  ; entries, room, where they are
%noted = type { i64, i64, i64 }  ; number of the tally, begin, end

; Copy a box of so many axes.
define internal void @box(ptr %from, ptr %to, i64 %bytes, ptr %dims, i64 %rank) {
entry:
  %whole = icmp eq i64 %rank, 0
  br i1 %whole, label %block, label %axis
block:
  call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  ret void
axis:
  %size = load i64, ptr %dims
  %read_at = getelementptr %dim, ptr %dims, i32 0, i32 1
  %read = load i64, ptr %read_at
  %write_at = getelementptr %dim, ptr %dims, i32 0, i32 2
  %write = load i64, ptr %write_at
  %inner = getelementptr %dim, ptr %dims, i64 1
  %rank_inner = sub i64 %rank, 1
  %last = icmp eq i64 %rank, 1
  %four = icmp eq i64 %bytes, 4
  %eight = icmp eq i64 %bytes, 8
  %is_four = and i1 %last, %four
  %is_eight = and i1 %last, %eight
  br label %next
next:
  %i = phi i64 [ 0, %axis ], [ %i_after, %done ]
  %any = icmp slt i64 %i, %size
  br i1 %any, label %element, label %end
element:
  %read_by = mul i64 %i, %read
  %write_by = mul i64 %i, %write
  %source = getelementptr i8, ptr %from, i64 %read_by
  %target = getelementptr i8, ptr %to, i64 %write_by
  br i1 %is_four, label %word, label %not_word
not_word:
  br i1 %is_eight, label %double, label %other
word:
  %four_bytes = load i32, ptr %source, align 1
  store i32 %four_bytes, ptr %target, align 1
  br label %done
double:
  %eight_bytes = load i64, ptr %source, align 1
  store i64 %eight_bytes, ptr %target, align 1
  br label %done
other:
  call void @box(ptr %source, ptr %target, i64 %bytes, ptr %inner, i64 %rank_inner)
  br label %done
done:
  %i_after = add i64 %i, 1
  br label %next
end:
  ret void
}

define internal void @copy(ptr %copy) {
  %from_var = load ptr, ptr %copy
  %from_begin = load ptr, ptr %from_var
  %from_offset_at = getelementptr %copy, ptr %copy, i32 0, i32 1
  %from_offset = load i64, ptr %from_offset_at
  %from = getelementptr i8, ptr %from_begin, i64 %from_offset
  %to_var_at = getelementptr %copy, ptr %copy, i32 0, i32 2
  %to_var = load ptr, ptr %to_var_at
  %to_begin = load ptr, ptr %to_var
  %to_offset_at = getelementptr %copy, ptr %copy, i32 0, i32 3
  %to_offset = load i64, ptr %to_offset_at
  %to = getelementptr i8, ptr %to_begin, i64 %to_offset
  %bytes_at = getelementptr %copy, ptr %copy, i32 0, i32 4
  %bytes = load i64, ptr %bytes_at
  %dims_at = getelementptr %copy, ptr %copy, i32 0, i32 5
  %dims = load ptr, ptr %dims_at
  %rank_at = getelementptr %copy, ptr %copy, i32 0, i32 6
  %rank = load i64, ptr %rank_at
  call void @box(ptr %from, ptr %to, i64 %bytes, ptr %dims, i64 %rank)
  ret void
}

; Set variables for a row.
define internal void @moves(ptr %moves, i64 %count, i64 %row) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_after, %move ]
  %any = icmp slt i64 %i, %count
  br i1 %any, label %move, label %end
move:
  %own = getelementptr %move, ptr %moves, i64 %i
  %to = load ptr, ptr %own
  %from_at = getelementptr %move, ptr %own, i32 0, i32 1
  %from = load ptr, ptr %from_at
  %offset_at = getelementptr %move, ptr %own, i32 0, i32 2
  %offset = load i64, ptr %offset_at
  %stride_at = getelementptr %move, ptr %own, i32 0, i32 3
  %stride = load i64, ptr %stride_at
  %begin = load ptr, ptr %from
  %by = mul i64 %row, %stride
  %far = add i64 %by, %offset
  %address = getelementptr i8, ptr %begin, i64 %far
  store ptr %address, ptr %to
  %i_after = add i64 %i, 1
  br label %next
end:
  ret void
}

; Whether the bool at a variable and an offset holds.
define internal i1 @holds(ptr %variable, i64 %offset) {
  %begin = load ptr, ptr %variable
  %at = getelementptr i8, ptr %begin, i64 %offset
  %byte = load i8, ptr %at
  %holds = icmp ne i8 %byte, 0
  ret i1 %holds
}

; Do items and note the time that they took.  Two looks at the clock take as long as a small kernel, so what
; is short is timed from time to time only, and each time counts for the runs before it.
define internal i1 @timed(ptr %pool, ptr %timed, ptr %scratch) {
  %clock = load ptr, ptr %timed
  %items_at = getelementptr %timed, ptr %timed, i32 0, i32 1
  %items = load ptr, ptr %items_at
  %count_at = getelementptr %list, ptr %items_at, i32 0, i32 1
  %count = load i64, ptr %count_at
  %tally_at = getelementptr %timed, ptr %timed, i32 0, i32 2
  %tally = load ptr, ptr %tally_at
  %since_at = getelementptr %tally, ptr %tally, i32 0, i32 1
  %since_before = load i64, ptr %since_at
  %since = add i64 %since_before, 1
  store i64 %since, ptr %since_at
  %runs_at = getelementptr %tally, ptr %tally, i32 0, i32 2
  %runs_before = load i64, ptr %runs_at
  %runs = add i64 %runs_before, 1
  store i64 %runs, ptr %runs_at
  %due = load i64, ptr %tally
  %left = sub i64 %due, 1
  store i64 %left, ptr %tally
  %pass = icmp sgt i64 %due, 0
  br i1 %pass, label %plain, label %look
plain:
  %through_plain = call i1 @items(ptr %pool, ptr %items, i64 %count, ptr %scratch)
  ret i1 %through_plain
look:
  %begin = call i64 %clock()
  %through = call i1 @items(ptr %pool, ptr %items, i64 %count, ptr %scratch)
  %end = call i64 %clock()
  %cost_at = getelementptr %tally, ptr %tally, i32 0, i32 5
  %cost = load i64, ptr %cost_at
  %whole = sub i64 %end, %begin
  %net = sub i64 %whole, %cost
  %took = call i64 @llvm.smax.i64(i64 %net, i64 0)
  %total_at = getelementptr %tally, ptr %tally, i32 0, i32 3
  %total_before = load i64, ptr %total_at
  %weight_at = getelementptr %tally, ptr %tally, i32 0, i32 4
  %weight_before = load i64, ptr %weight_at
  ; One that the system has interrupted counts for itself, and the mean for those before it.
  %some = call i64 @llvm.smax.i64(i64 %weight_before, i64 1)
  %mean = udiv i64 %total_before, %some
  %far = mul i64 %mean, 16
  %usual = add i64 %far, INTERRUPTED
  %interrupted = icmp sgt i64 %took, %usual
  %for_each = select i1 %interrupted, i64 %mean, i64 %took
  %others = sub i64 %since, 1
  %of_others = mul i64 %for_each, %others
  %weighted = add i64 %of_others, %took
  %total = add i64 %total_before, %weighted
  store i64 %total, ptr %total_at
  %weight = add i64 %weight_before, %since
  store i64 %weight, ptr %weight_at
  store i64 0, ptr %since_at
  %length = add i64 %took, 1
  %worth = udiv i64 PATIENCE, %length
  %skip = call i64 @llvm.smin.i64(i64 %worth, i64 MOST_SKIPPED)
  store i64 %skip, ptr %tally
  %log_at = getelementptr %tally, ptr %tally, i32 0, i32 7
  %log = load ptr, ptr %log_at
  %used = load i64, ptr %log
  %room_at = getelementptr %log, ptr %log, i32 0, i32 1
  %room = load i64, ptr %room_at
  %fits = icmp slt i64 %used, %room
  br i1 %fits, label %write, label %done
write:
  %entries_at = getelementptr %log, ptr %log, i32 0, i32 2
  %entries = load ptr, ptr %entries_at
  %entry = getelementptr %noted, ptr %entries, i64 %used
  %number_at = getelementptr %tally, ptr %tally, i32 0, i32 6
  %number = load i64, ptr %number_at
  store i64 %number, ptr %entry
  %begin_at = getelementptr %noted, ptr %entry, i32 0, i32 1
  store i64 %begin, ptr %begin_at
  %end_at = getelementptr %noted, ptr %entry, i32 0, i32 2
  %until = add i64 %begin, %took ; without the clock's own time, as the total
  store i64 %until, ptr %end_at
  %more = add i64 %used, 1
  store i64 %more, ptr %log
  br label %done
done:
  ret i1 %through
}

; Do items one after another; false if Python wants to stop.
define internal i1 @items(ptr %pool, ptr %items, i64 %count, ptr %scratch) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_after, %done ]
  %any = icmp slt i64 %i, %count
  br i1 %any, label %item, label %end
item:
  %own = getelementptr %item, ptr %items, i64 %i
  %kind = load i64, ptr %own
  %what_at = getelementptr %item, ptr %own, i32 0, i32 1
  %what = load ptr, ptr %what_at
  %cells_at = getelementptr %item, ptr %own, i32 0, i32 2
  %cells = load ptr, ptr %cells_at
  switch i64 %kind, label %done [ i64 0, label %kernels
                                  i64 1, label %box
                                  i64 2, label %move
                                  i64 3, label %inner
                                  i64 4, label %choose
                                  i64 5, label %check
                                  i64 6, label %time ]
kernels:
  %refused = call i32 @series(ptr %pool, ptr %what, ptr %cells, ptr %scratch)
  br label %done
box:
  call void @copy(ptr %what)
  br label %done
move:
  %moves = load ptr, ptr %what
  %moves_at = getelementptr %list, ptr %what, i32 0, i32 1
  %moves_count = load i64, ptr %moves_at
  call void @moves(ptr %moves, i64 %moves_count, i64 0)
  br label %done
inner:
  %length_at = getelementptr %loop, ptr %what, i32 0, i32 10
  %length = load i64, ptr %length_at
  %steps = call i64 @steps(ptr %pool, ptr %what, i64 0, i64 %length, ptr %scratch)
  %ended = icmp sge i64 %steps, 0
  br i1 %ended, label %done, label %stop
choose:
  %variable = load ptr, ptr %what
  %offset_at = getelementptr %choice, ptr %what, i32 0, i32 1
  %offset = load i64, ptr %offset_at
  %holds = call i1 @holds(ptr %variable, i64 %offset)
  %yes = getelementptr %choice, ptr %what, i32 0, i32 2
  %no = getelementptr %choice, ptr %what, i32 0, i32 3
  %branch = select i1 %holds, ptr %yes, ptr %no
  %branch_items = load ptr, ptr %branch
  %branch_at = getelementptr %list, ptr %branch, i32 0, i32 1
  %branch_count = load i64, ptr %branch_at
  %through = call i1 @items(ptr %pool, ptr %branch_items, i64 %branch_count, ptr %scratch)
  br i1 %through, label %done, label %stop
check:
  %checked = load ptr, ptr %what
  %checked_at = getelementptr %check, ptr %what, i32 0, i32 1
  %checked_offset = load i64, ptr %checked_at
  %sound = call i1 @holds(ptr %checked, i64 %checked_offset)
  br i1 %sound, label %done, label %fail
time:
  %timed_through = call i1 @timed(ptr %pool, ptr %what, ptr %scratch)
  br i1 %timed_through, label %done, label %stop
fail:
  %number_at = getelementptr %check, ptr %what, i32 0, i32 2
  %number = load i64, ptr %number_at
  %control_at = getelementptr %check, ptr %what, i32 0, i32 3
  %control = load ptr, ptr %control_at
  %failed_at = getelementptr %control, ptr %control, i32 0, i32 2
  store i64 %number, ptr %failed_at
  br label %stop
done:
  %i_after = add i64 %i, 1
  br label %next
end:
  ret i1 true
stop:
  ret i1 false
}

; Do so many steps of a loop, or those until its test fails; how many it did, or -1 if Python wants to stop.
define i64 @steps(ptr %pool, ptr %loop, i64 %first, i64 %count, ptr %scratch) {
entry:
  %moves = load ptr, ptr %loop
  %moves_at = getelementptr %loop, ptr %loop, i32 0, i32 1
  %moves_count = load i64, ptr %moves_at
  %test_at = getelementptr %loop, ptr %loop, i32 0, i32 2
  %test = load ptr, ptr %test_at
  %test_count_at = getelementptr %list, ptr %test_at, i32 0, i32 1
  %test_count = load i64, ptr %test_count_at
  %going_at = getelementptr %loop, ptr %loop, i32 0, i32 3
  %going = load ptr, ptr %going_at
  %offset_at = getelementptr %loop, ptr %loop, i32 0, i32 4
  %offset = load i64, ptr %offset_at
  %body_at = getelementptr %loop, ptr %loop, i32 0, i32 5
  %body = load ptr, ptr %body_at
  %body_count_at = getelementptr %list, ptr %body_at, i32 0, i32 1
  %body_count = load i64, ptr %body_count_at
  %slots_at = getelementptr %loop, ptr %loop, i32 0, i32 6
  %slots = load ptr, ptr %slots_at
  %order_at = getelementptr %loop, ptr %loop, i32 0, i32 7
  %order = load ptr, ptr %order_at
  %room_at = getelementptr %loop, ptr %loop, i32 0, i32 8
  %room = load ptr, ptr %room_at
  %slots_count_at = getelementptr %loop, ptr %loop, i32 0, i32 9
  %slots_count = load i64, ptr %slots_count_at
  %slots_bytes = mul i64 %slots_count, 8
  %length_at = getelementptr %loop, ptr %loop, i32 0, i32 10
  %length = load i64, ptr %length_at
  %last = sub i64 %length, 1
  %reverse_at = getelementptr %loop, ptr %loop, i32 0, i32 11
  %reverse = load i64, ptr %reverse_at
  %turned = icmp ne i64 %reverse, 0
  %tested = icmp ne ptr %going, null
  %control_at = getelementptr %loop, ptr %loop, i32 0, i32 12
  %control = load ptr, ptr %control_at
  %tick_at = getelementptr %control, ptr %control, i32 0, i32 1
  %tick = load ptr, ptr %tick_at
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k_after, %go_on ]
  %any = icmp slt i64 %k, %count
  br i1 %any, label %step, label %end
step:
  %number = add i64 %first, %k
  %mirrored = sub i64 %last, %number
  %row = select i1 %turned, i64 %mirrored, i64 %number
  call void @moves(ptr %moves, i64 %moves_count, i64 %row)
  br i1 %tested, label %ask, label %do
ask:
  %asked = call i1 @items(ptr %pool, ptr %test, i64 %test_count, ptr %scratch)
  br i1 %asked, label %answer, label %stop
answer:
  %on = call i1 @holds(ptr %going, i64 %offset)
  br i1 %on, label %do, label %end
do:
  %done = call i1 @items(ptr %pool, ptr %body, i64 %body_count, ptr %scratch)
  br i1 %done, label %carry, label %stop
carry:
  call void @llvm.memmove.p0.p0.i64(ptr %room, ptr %slots, i64 %slots_bytes, i1 false)
  br label %slot
slot:
  %s = phi i64 [ 0, %carry ], [ %s_after, %permute ]
  %more = icmp slt i64 %s, %slots_count
  br i1 %more, label %permute, label %turn
permute:
  %source_at = getelementptr i64, ptr %order, i64 %s
  %source = load i64, ptr %source_at
  %held_at = getelementptr ptr, ptr %room, i64 %source
  %held = load ptr, ptr %held_at
  %slot_at = getelementptr ptr, ptr %slots, i64 %s
  store ptr %held, ptr %slot_at
  %s_after = add i64 %s, 1
  br label %slot
turn:
  %k_after = add i64 %k, 1
  %budget = load i64, ptr %control
  %left = sub i64 %budget, 1
  store i64 %left, ptr %control
  %spent = icmp sle i64 %left, 0
  br i1 %spent, label %python, label %go_on
python:
  %granted = call i64 %tick()
  store i64 %granted, ptr %control
  %refused = icmp sle i64 %granted, 0
  br i1 %refused, label %stop, label %go_on
go_on:
  br label %next
end:
  ret i64 %k
stop:
  ret i64 -1
}
""".replace("PATIENCE", str(_PATIENCE))
    .replace("INTERRUPTED", str(_INTERRUPTED))
    .replace("MOST_SKIPPED", str(_MOST_SKIPPED))
)
