"""The second half of a call in LLVM IR: make a result, run the kernels of a record on it and wrap it.

A program of a few microseconds holds the lock of the interpreter all the time (`short`).  Another lets go
of it while its kernels run (`long`): until then it holds on to all that it reads, and what it works in is
its own.
"""

RESULT = """
; PyType_GenericAlloc, PyArray_Empty, Py_IncRef, Py_DecRef, PyObject_Vectorcall; the class of tensors, its fields
; (type, data) and those of a new one; where the numbers of forks and of what is busy are; @series; where the
; device of a tensor is, and which it must be; PyErr_Clear, PyEval_SaveThread, PyEval_RestoreThread,
; PyDataMem_SetHandler; the handler, memory and functions of blocks_ir.py (@take, @give); False, True; PyContextVar_Get, the
; variable of the settings.
%api = type { ptr, ptr, ptr, ptr, ptr, ptr, i64, i64, ptr, i64, ptr, ptr, ptr, i64, ptr,
              ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr }
%field = type { i64, ptr }  ; offset, object
; Arguments by position, names of keywords, all arguments, what they are known by, the configuration; type of
; the result, dtype, rank, shape; series, pool; how many arguments are tensors; for short programs scratch, else null;
; for long ones bytes of scratch if no other thread takes part, bytes of memory between kernels; whether the result
; lies in a block; for long programs what enters and leaves the pool if other threads take part, else null; the object
; that owns this.
%record = type { i64, ptr, i64, ptr, i64, ptr, ptr, i32, ptr, ptr, ptr, i64, ptr, i64, i64, i64, ptr, ptr, ptr }
%cell = type { ptr, ptr, ptr }  ; table of records, Python function, api
%made = type { ptr, i1 }  ; a tensor, or null and an exception; whether Python shall do it instead

; A new array for the result, in memory of NumPy's or in a block.
define internal ptr @array(ptr %api, ptr %record) {
entry:
  %is_block_at = getelementptr %record, ptr %record, i32 0, i32 15
  %is_block_word = load i64, ptr %is_block_at
  %is_block = icmp ne i64 %is_block_word, 0
  br i1 %is_block, label %large, label %small
large:
  %in_block = call ptr @in_block(ptr %api, ptr %record)
  ret ptr %in_block
small:
  %plain = call ptr @plain(ptr %api, ptr %record)
  ret ptr %plain
}

define internal ptr @plain(ptr %api, ptr %record) {
  %incref_at = getelementptr %api, ptr %api, i32 0, i32 2
  %incref = load ptr, ptr %incref_at
  %dtype_at = getelementptr %record, ptr %record, i32 0, i32 6
  %dtype = load ptr, ptr %dtype_at
  %rank_at = getelementptr %record, ptr %record, i32 0, i32 7
  %rank = load i32, ptr %rank_at
  %shape_at = getelementptr %record, ptr %record, i32 0, i32 8
  %shape = load ptr, ptr %shape_at
  %empty_at = getelementptr %api, ptr %api, i32 0, i32 1
  %empty = load ptr, ptr %empty_at
  call void %incref(ptr %dtype)  ; which making an array takes away
  %out = call ptr %empty(i32 %rank, ptr %shape, ptr %dtype, i32 0)
  ret ptr %out
}

define internal ptr @in_block(ptr %api, ptr %record) {
entry:
  %decref_at = getelementptr %api, ptr %api, i32 0, i32 3
  %decref = load ptr, ptr %decref_at
  %set_at = getelementptr %api, ptr %api, i32 0, i32 18
  %set = load ptr, ptr %set_at
  %handler_at = getelementptr %api, ptr %api, i32 0, i32 19
  %handler = load ptr, ptr %handler_at
  %usual = call ptr %set(ptr %handler)
  %could = icmp ne ptr %usual, null
  br i1 %could, label %make, label %fail
make:
  %out = call ptr @plain(ptr %api, ptr %record)
  %ours = call ptr %set(ptr %usual)
  call void %decref(ptr %usual)
  %restored = icmp ne ptr %ours, null
  br i1 %restored, label %end, label %lose
end:
  call void %decref(ptr %ours)
  ret ptr %out
lose:
  %had = icmp ne ptr %out, null
  br i1 %had, label %drop, label %fail
drop:
  call void %decref(ptr %out)
  br label %fail
fail:
  ret ptr null
}

; Run the kernels of a record.
define internal i32 @run(ptr %api, ptr %record, ptr %cells, ptr %scratch) {
  %series_at = getelementptr %record, ptr %record, i32 0, i32 9
  %series = load ptr, ptr %series_at
  %pool_at = getelementptr %record, ptr %record, i32 0, i32 10
  %pool = load ptr, ptr %pool_at
  %do_at = getelementptr %api, ptr %api, i32 0, i32 12
  %do = load ptr, ptr %do_at
  %refused = call i32 %do(ptr %pool, ptr %series, ptr %cells, ptr %scratch)
  ret i32 %refused
}

; A tensor of an array, which it takes.
define internal ptr @wrap(ptr %api, ptr %record, ptr %out) {
entry:
  %incref_at = getelementptr %api, ptr %api, i32 0, i32 2
  %incref = load ptr, ptr %incref_at
  %class_at = getelementptr %api, ptr %api, i32 0, i32 5
  %class = load ptr, ptr %class_at
  %alloc = load ptr, ptr %api
  %tensor = call ptr %alloc(ptr %class, i64 0)
  %wrapped = icmp ne ptr %tensor, null
  br i1 %wrapped, label %fill, label %lose
lose:
  %decref_at = getelementptr %api, ptr %api, i32 0, i32 3
  %decref = load ptr, ptr %decref_at
  call void %decref(ptr %out)
  ret ptr null
fill:
  %type_offset_at = getelementptr %api, ptr %api, i32 0, i32 6
  %type_offset = load i64, ptr %type_offset_at
  %data_offset_at = getelementptr %api, ptr %api, i32 0, i32 7
  %data_offset = load i64, ptr %data_offset_at
  %out_data_at = getelementptr i8, ptr %tensor, i64 %data_offset
  store ptr %out, ptr %out_data_at
  %out_type_at = getelementptr %record, ptr %record, i32 0, i32 5
  %out_type = load ptr, ptr %out_type_at
  call void %incref(ptr %out_type)
  %tensor_type_at = getelementptr i8, ptr %tensor, i64 %type_offset
  store ptr %out_type, ptr %tensor_type_at
  %fields_at = getelementptr %api, ptr %api, i32 0, i32 8
  %fields = load ptr, ptr %fields_at
  %others_at = getelementptr %api, ptr %api, i32 0, i32 9
  %others = load i64, ptr %others_at
  br label %field
field:
  %f = phi i64 [ 0, %fill ], [ %f_after, %set ]
  %unset = icmp slt i64 %f, %others
  br i1 %unset, label %set, label %done
set:
  %field_at = getelementptr %field, ptr %fields, i64 %f
  %offset = load i64, ptr %field_at
  %value_at = getelementptr %field, ptr %field_at, i32 0, i32 1
  %value = load ptr, ptr %value_at
  call void %incref(ptr %value)
  %place = getelementptr i8, ptr %tensor, i64 %offset
  store ptr %value, ptr %place
  %f_after = add i64 %f, 1
  br label %field
done:
  ret ptr %tensor
}

define internal %made @short(ptr %api, ptr %record, ptr %cells, i64 %tensors, ptr %scratch) {
entry:
  %out = call ptr @array(ptr %api, ptr %record)
  %made = icmp ne ptr %out, null
  br i1 %made, label %run, label %fail
run:
  %last = getelementptr ptr, ptr %cells, i64 %tensors
  store ptr %out, ptr %last
  %refused = call i32 @run(ptr %api, ptr %record, ptr %cells, ptr %scratch)
  %ran = icmp eq i32 %refused, 0
  br i1 %ran, label %wrap, label %undo
undo:
  %decref_at = getelementptr %api, ptr %api, i32 0, i32 3
  %decref = load ptr, ptr %decref_at
  call void %decref(ptr %out)
  ret %made { ptr null, i1 true }
wrap:
  %tensor = call ptr @wrap(ptr %api, ptr %record, ptr %out)
  %whole = insertvalue %made { ptr undef, i1 false }, ptr %tensor, 0
  ret %made %whole
fail:
  call void @forget(ptr %api)
  ret %made { ptr null, i1 true }
}

; Call Py_IncRef or Py_DecRef on the first so many cells.
define internal void @each(ptr %cells, i64 %count, ptr %f) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_after, %one ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %at = getelementptr ptr, ptr %cells, i64 %i
  %object = load ptr, ptr %at
  call void %f(ptr %object)
  %i_after = add i64 %i, 1
  br label %next
done:
  ret void
}

; Memory for so many bytes, null for none; the second tells whether it could be had.
define internal %made @block(ptr %api, i64 %bytes) {
entry:
  %any = icmp ne i64 %bytes, 0
  br i1 %any, label %some, label %none
some:
  %take_at = getelementptr %api, ptr %api, i32 0, i32 21
  %take = load ptr, ptr %take_at
  %all_at = getelementptr %api, ptr %api, i32 0, i32 20
  %all = load ptr, ptr %all_at
  %data = call ptr %take(ptr %all, i64 %bytes)
  %got = icmp ne ptr %data, null
  %first = insertvalue %made undef, ptr %data, 0
  %both = insertvalue %made %first, i1 %got, 1
  ret %made %both
none:
  ret %made { ptr null, i1 true }
}

define internal void @give_back(ptr %api, ptr %data) {
  %give_at = getelementptr %api, ptr %api, i32 0, i32 22
  %give = load ptr, ptr %give_at
  %all_at = getelementptr %api, ptr %api, i32 0, i32 20
  %all = load ptr, ptr %all_at
  call void %give(ptr %all, ptr %data, i64 0)
  ret void
}

; Whether the pool is this thread's now; it is not when another thread has it.
define internal i1 @enter(ptr %api, ptr %record) {
entry:
  %enter_at = getelementptr %record, ptr %record, i32 0, i32 16
  %enter = load ptr, ptr %enter_at
  %alone = icmp eq ptr %enter, null
  br i1 %alone, label %free, label %ask
ask:
  %vectorcall_at = getelementptr %api, ptr %api, i32 0, i32 4
  %vectorcall = load ptr, ptr %vectorcall_at
  %no_at = getelementptr %api, ptr %api, i32 0, i32 23  ; the one argument: do not wait
  %got = call ptr %vectorcall(ptr %enter, ptr %no_at, i64 1, ptr null)
  %answered = icmp ne ptr %got, null
  br i1 %answered, label %look, label %forget
look:
  %decref_at = getelementptr %api, ptr %api, i32 0, i32 3
  %decref = load ptr, ptr %decref_at
  call void %decref(ptr %got)
  %yes_at = getelementptr %api, ptr %api, i32 0, i32 24
  %yes = load ptr, ptr %yes_at
  %mine = icmp eq ptr %got, %yes
  ret i1 %mine
forget:
  call void @forget(ptr %api)
  ret i1 false
free:
  ret i1 true
}

define internal void @leave(ptr %api, ptr %record) {
entry:
  %leave_at = getelementptr %record, ptr %record, i32 0, i32 17
  %leave = load ptr, ptr %leave_at
  %alone = icmp eq ptr %leave, null
  br i1 %alone, label %done, label %tell
tell:
  %vectorcall_at = getelementptr %api, ptr %api, i32 0, i32 4
  %vectorcall = load ptr, ptr %vectorcall_at
  %none = call ptr %vectorcall(ptr %leave, ptr null, i64 0, ptr null)
  %decref_at = getelementptr %api, ptr %api, i32 0, i32 3
  %decref = load ptr, ptr %decref_at
  call void %decref(ptr %none)
  br label %done
done:
  ret void
}

; Python will come to the same exception, and say more.
define internal void @forget(ptr %api) {
  %clear_at = getelementptr %api, ptr %api, i32 0, i32 15
  %clear = load ptr, ptr %clear_at
  call void %clear()
  ret void
}

define internal %made @long(ptr %api, ptr %record, ptr %cells, i64 %tensors) {
entry:
  %between = alloca i8, i64 $items  ; laid out as an array object, as far as its data
  %incref_at = getelementptr %api, ptr %api, i32 0, i32 2
  %incref = load ptr, ptr %incref_at
  %decref_at = getelementptr %api, ptr %api, i32 0, i32 3
  %decref = load ptr, ptr %decref_at
  %out = call ptr @array(ptr %api, ptr %record)
  %made = icmp ne ptr %out, null
  br i1 %made, label %work, label %fail
fail:
  call void @forget(ptr %api)
  ret %made { ptr null, i1 true }
work:
  %scratch_bytes_at = getelementptr %record, ptr %record, i32 0, i32 13
  %scratch_bytes = load i64, ptr %scratch_bytes_at
  %scratch_made = call %made @block(ptr %api, i64 %scratch_bytes)
  %own = extractvalue %made %scratch_made, 0
  %had_scratch = extractvalue %made %scratch_made, 1
  %between_bytes_at = getelementptr %record, ptr %record, i32 0, i32 14
  %between_bytes = load i64, ptr %between_bytes_at
  %between_made = call %made @block(ptr %api, i64 %between_bytes)
  %arena = extractvalue %made %between_made, 0
  %had_between = extractvalue %made %between_made, 1
  %arena_at = getelementptr i8, ptr %between, i64 $head
  store ptr %arena, ptr %arena_at
  %last = getelementptr ptr, ptr %cells, i64 %tensors
  store ptr %out, ptr %last
  %after_last = getelementptr ptr, ptr %last, i64 1
  store ptr %between, ptr %after_last
  %had = and i1 %had_scratch, %had_between
  br i1 %had, label %ask, label %undo
ask:
  %entered = call i1 @enter(ptr %api, ptr %record)
  br i1 %entered, label %go, label %undo
go:
  %owner_at = getelementptr %record, ptr %record, i32 0, i32 18
  %owner = load ptr, ptr %owner_at
  call void %incref(ptr %owner)
  call void @each(ptr %cells, i64 %tensors, ptr %incref)
  %pool_at = getelementptr %record, ptr %record, i32 0, i32 10
  %pool = load ptr, ptr %pool_at
  %table_at = getelementptr i8, ptr %pool, i64 $pool_scratch
  %table = load ptr, ptr %table_at
  %shared = load ptr, ptr %table
  %needs_own = icmp ne ptr %own, null
  %scratch = select i1 %needs_own, ptr %own, ptr %shared
  %save_at = getelementptr %api, ptr %api, i32 0, i32 16
  %save = load ptr, ptr %save_at
  %restore_at = getelementptr %api, ptr %api, i32 0, i32 17
  %restore = load ptr, ptr %restore_at
  %thread = call ptr %save()
  %refused = call i32 @run(ptr %api, ptr %record, ptr %cells, ptr %scratch)
  call void %restore(ptr %thread)
  call void @leave(ptr %api, ptr %record)
  call void @give_back(ptr %api, ptr %own)
  call void @give_back(ptr %api, ptr %arena)
  call void @each(ptr %cells, i64 %tensors, ptr %decref)
  %ran = icmp eq i32 %refused, 0
  br i1 %ran, label %wrap, label %refuse
wrap:
  %tensor = call ptr @wrap(ptr %api, ptr %record, ptr %out)
  call void %decref(ptr %owner)
  %whole = insertvalue %made { ptr undef, i1 false }, ptr %tensor, 0
  ret %made %whole
refuse:
  call void %decref(ptr %out)
  call void %decref(ptr %owner)
  ret %made { ptr null, i1 true }
undo:
  call void @give_back(ptr %api, ptr %own)
  call void @give_back(ptr %api, ptr %arena)
  call void %decref(ptr %out)
  ret %made { ptr null, i1 true }
}
"""  # noqa: E501
