"""A call from Python in LLVM IR: from array objects to a new array object, without the interpreter.

`call` is a C function of CPython (METH_FASTCALL with keywords).  Its `self` is a capsule with a %cell.  When the
arguments are those of the record there, it makes the result, runs the kernels and wraps it; whatever it
does not know goes to a Python function.  It holds the lock of the interpreter all the time, so records are for
programs of a few microseconds.
"""

from __future__ import annotations

from string import Template

from tessera.runtime.pool_ir import HEAD, TYPE

_MOST = 16  # cells on the stack


def call_ir() -> str:
    """The module of a call."""
    return Template(_CALL).substitute(head=HEAD, type=TYPE, most=_MOST)


_CALL = """
; PyType_GenericAlloc, PyArray_Empty, Py_IncRef, Py_DecRef, PyObject_Vectorcall; the class of tensors, its fields
; (type, data) and three objects for the others; where the configuration and what is busy are; @series, pool.
%api = type { ptr, ptr, ptr, ptr, ptr, ptr, i64, i64, ptr, i64, ptr, ptr, ptr, ptr }
%field = type { i64, ptr }  ; offset, object
; How many arguments, their types, the configuration; type of the result, dtype, rank, shape; series, scratch.
%record = type { i64, ptr, i64, ptr, ptr, i32, ptr, ptr, ptr }
%cell = type { ptr, ptr, ptr }  ; record, Python function, api

define ptr @call(ptr %self, ptr %args, i64 %count, ptr %keywords) {
entry:
  %cells = alloca ptr, i64 $most
  %pointer_at = getelementptr i8, ptr %self, i64 $head
  %cell = load ptr, ptr %pointer_at
  %api_at = getelementptr %cell, ptr %cell, i32 0, i32 2
  %api = load ptr, ptr %api_at
  %record = load ptr, ptr %cell
  %known = icmp ne ptr %record, null
  br i1 %known, label %plain, label %slow
plain:
  %no_keywords = icmp eq ptr %keywords, null
  br i1 %no_keywords, label %counted, label %slow
counted:
  %wanted = load i64, ptr %record
  %as_many = icmp eq i64 %count, %wanted
  br i1 %as_many, label %configured, label %slow
configured:
  %configuration_at = getelementptr %record, ptr %record, i32 0, i32 2
  %configuration = load i64, ptr %configuration_at
  %now_at = getelementptr %api, ptr %api, i32 0, i32 10
  %now_place = load ptr, ptr %now_at
  %now = load i64, ptr %now_place
  %same_configuration = icmp eq i64 %configuration, %now
  %busy_at = getelementptr %api, ptr %api, i32 0, i32 11
  %busy_place = load ptr, ptr %busy_at
  %busy = load i64, ptr %busy_place
  %idle = icmp eq i64 %busy, 0
  %as_before = and i1 %same_configuration, %idle
  br i1 %as_before, label %prepare, label %slow
prepare:
  %class_at = getelementptr %api, ptr %api, i32 0, i32 5
  %class = load ptr, ptr %class_at
  %type_offset_at = getelementptr %api, ptr %api, i32 0, i32 6
  %type_offset = load i64, ptr %type_offset_at
  %data_offset_at = getelementptr %api, ptr %api, i32 0, i32 7
  %data_offset = load i64, ptr %data_offset_at
  %types_at = getelementptr %record, ptr %record, i32 0, i32 1
  %types = load ptr, ptr %types_at
  br label %next
next:
  %i = phi i64 [ 0, %prepare ], [ %i_after, %taken ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %argument, label %make
argument:
  %argument_at = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %argument_at
  %object_class_at = getelementptr i8, ptr %object, i64 $type
  %object_class = load ptr, ptr %object_class_at
  %is_tensor = icmp eq ptr %object_class, %class
  br i1 %is_tensor, label %typed, label %slow
typed:
  %type_at = getelementptr i8, ptr %object, i64 %type_offset
  %type = load ptr, ptr %type_at
  %expected_at = getelementptr ptr, ptr %types, i64 %i
  %expected = load ptr, ptr %expected_at
  %same_type = icmp eq ptr %type, %expected
  br i1 %same_type, label %taken, label %slow
taken:
  %data_at = getelementptr i8, ptr %object, i64 %data_offset
  %data = load ptr, ptr %data_at
  %slot = getelementptr ptr, ptr %cells, i64 %i
  store ptr %data, ptr %slot
  %i_after = add i64 %i, 1
  br label %next
make:
  %incref_at = getelementptr %api, ptr %api, i32 0, i32 2
  %incref = load ptr, ptr %incref_at
  %decref_at = getelementptr %api, ptr %api, i32 0, i32 3
  %decref = load ptr, ptr %decref_at
  %dtype_at = getelementptr %record, ptr %record, i32 0, i32 4
  %dtype = load ptr, ptr %dtype_at
  %rank_at = getelementptr %record, ptr %record, i32 0, i32 5
  %rank = load i32, ptr %rank_at
  %shape_at = getelementptr %record, ptr %record, i32 0, i32 6
  %shape = load ptr, ptr %shape_at
  %empty_at = getelementptr %api, ptr %api, i32 0, i32 1
  %empty = load ptr, ptr %empty_at
  call void %incref(ptr %dtype)  ; which making an array takes away
  %out = call ptr %empty(i32 %rank, ptr %shape, ptr %dtype, i32 0)
  %made = icmp ne ptr %out, null
  br i1 %made, label %run, label %fail
run:
  %last = getelementptr ptr, ptr %cells, i64 %count
  store ptr %out, ptr %last
  %series_at = getelementptr %record, ptr %record, i32 0, i32 7
  %series = load ptr, ptr %series_at
  %scratch_at = getelementptr %record, ptr %record, i32 0, i32 8
  %scratch = load ptr, ptr %scratch_at
  %do_at = getelementptr %api, ptr %api, i32 0, i32 12
  %do = load ptr, ptr %do_at
  %pool_at = getelementptr %api, ptr %api, i32 0, i32 13
  %pool = load ptr, ptr %pool_at
  %refused = call i32 %do(ptr %pool, ptr %series, ptr %cells, ptr %scratch)
  %ran = icmp eq i32 %refused, 0
  br i1 %ran, label %wrap, label %undo
undo:
  call void %decref(ptr %out)
  br label %slow
wrap:
  %alloc = load ptr, ptr %api
  %tensor = call ptr %alloc(ptr %class, i64 0)
  %wrapped = icmp ne ptr %tensor, null
  br i1 %wrapped, label %fill, label %lose
lose:
  call void %decref(ptr %out)
  br label %fail
fill:
  %out_data_at = getelementptr i8, ptr %tensor, i64 %data_offset
  store ptr %out, ptr %out_data_at
  %out_type_at = getelementptr %record, ptr %record, i32 0, i32 3
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
fail:
  ret ptr null
slow:
  %function_at = getelementptr %cell, ptr %cell, i32 0, i32 1
  %function = load ptr, ptr %function_at
  %vectorcall_at = getelementptr %api, ptr %api, i32 0, i32 4
  %vectorcall = load ptr, ptr %vectorcall_at
  %result = call ptr %vectorcall(ptr %function, ptr %args, i64 %count, ptr %keywords)
  ret ptr %result
}
"""
