"""A call from Python in LLVM IR: from array objects to a new array object, without the interpreter.

`call` is a C function of CPython (METH_FASTCALL with keywords).  Its `self` is a capsule with a %cell,
which has a table of records.  When the arguments are those of a record, it makes the result, runs the
kernels and wraps it; whatever it does not know goes to a Python function.

Tensors are known by their types, anything else is known by its address, as are the names of keywords (CPython
keeps one string for each name in a program).
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from tessera.runtime.pool_ir import HEAD, SCRATCH, TYPE
from tessera.runtime.result_ir import RESULT

MOST_ARGUMENTS = 15  # calls with more go through Python
SLOTS = 64  # of a table, a power of two
_SPREAD = 0x9E3779B97F4A7C15  # an odd number whose products have many different high bits


def call_ir() -> str:
    """The module of a call."""
    return Template(RESULT + _CALL).substitute(
        head=HEAD,
        items=HEAD + 8,
        type=TYPE,
        cells=MOST_ARGUMENTS + 2,  # and the result, and what lies between kernels
        pool_scratch=SCRATCH,
        spread=_SPREAD - (1 << 64),
        shift=64 - 6,
    )


def slot_of(addresses: Sequence[int]) -> int:
    """The slot of a record: the sum of what its arguments and keywords are known by, spread."""
    return sum(addresses) * _SPREAD % (1 << 64) >> 64 - 6


_CALL = """
define ptr @call(ptr %self, ptr %args, i64 %count, ptr %keywords) {
entry:
  %cells = alloca ptr, i64 $cells
  %found_at = alloca ptr
  %pointer_at = getelementptr i8, ptr %self, i64 $head
  %cell = load ptr, ptr %pointer_at
  %api_at = getelementptr %cell, ptr %cell, i32 0, i32 2
  %api = load ptr, ptr %api_at
  %class_at = getelementptr %api, ptr %api, i32 0, i32 5
  %class = load ptr, ptr %class_at
  %type_offset_at = getelementptr %api, ptr %api, i32 0, i32 6
  %type_offset = load i64, ptr %type_offset_at
  %data_offset_at = getelementptr %api, ptr %api, i32 0, i32 7
  %data_offset = load i64, ptr %data_offset_at
  %named = icmp ne ptr %keywords, null
  br i1 %named, label %by_name, label %hash_all
by_name:
  %names_count_at = getelementptr i8, ptr %keywords, i64 $head
  %names_count_there = load i64, ptr %names_count_at
  br label %hash_all
hash_all:
  %names_count = phi i64 [ 0, %entry ], [ %names_count_there, %by_name ]
  br label %hash
hash:
  %h = phi i64 [ 0, %hash_all ], [ %h_after, %hashed ]
  %sum = phi i64 [ %names_count, %hash_all ], [ %sum_after, %hashed ]
  %unhashed = icmp slt i64 %h, %count
  br i1 %unhashed, label %hash_one, label %find
hash_one:
  %hash_at = getelementptr ptr, ptr %args, i64 %h
  %hash_object = load ptr, ptr %hash_at
  %hash_class_at = getelementptr i8, ptr %hash_object, i64 $type
  %hash_class = load ptr, ptr %hash_class_at
  %hash_tensor = icmp eq ptr %hash_class, %class
  br i1 %hash_tensor, label %hash_type, label %hashed
hash_type:
  %hash_type_at = getelementptr i8, ptr %hash_object, i64 %type_offset
  %hash_type_of = load ptr, ptr %hash_type_at
  br label %hashed
hashed:
  %known_by = phi ptr [ %hash_object, %hash_one ], [ %hash_type_of, %hash_type ]
  %number = ptrtoint ptr %known_by to i64
  %sum_after = add i64 %sum, %number
  %h_after = add i64 %h, 1
  br label %hash
find:
  %spread = mul i64 %sum, $spread
  %slot_number = lshr i64 %spread, $shift
  %table = load ptr, ptr %cell
  %record_at = getelementptr ptr, ptr %table, i64 %slot_number
  %record = load ptr, ptr %record_at
  %known = icmp ne ptr %record, null
  br i1 %known, label %plain, label %slow
plain:
  %total_at = getelementptr %record, ptr %record, i32 0, i32 2
  %total = load i64, ptr %total_at
  %given = add i64 %count, %names_count
  %all_given = icmp eq i64 %given, %total
  br i1 %all_given, label %compare, label %slow
compare:
  %names_at = getelementptr %record, ptr %record, i32 0, i32 1
  %names = load ptr, ptr %names_at
  br label %name
name:
  %n = phi i64 [ 0, %compare ], [ %n_after, %name_one ]
  %unnamed = icmp slt i64 %n, %names_count
  br i1 %unnamed, label %name_one, label %counted
name_one:
  %items = getelementptr i8, ptr %keywords, i64 $items
  %name_at = getelementptr ptr, ptr %items, i64 %n
  %name_given = load ptr, ptr %name_at
  %name_wanted_at = getelementptr ptr, ptr %names, i64 %n
  %name_wanted = load ptr, ptr %name_wanted_at
  %same_name = icmp eq ptr %name_given, %name_wanted
  %n_after = add i64 %n, 1
  br i1 %same_name, label %name, label %slow
counted:
  %wanted = load i64, ptr %record
  %as_many = icmp eq i64 %count, %wanted
  br i1 %as_many, label %configured, label %slow
configured:
  %configuration_at = getelementptr %record, ptr %record, i32 0, i32 4
  %configuration = load i64, ptr %configuration_at
  %forks_at = getelementptr %api, ptr %api, i32 0, i32 10
  %forks_place = load ptr, ptr %forks_at
  %forks = load i64, ptr %forks_place
  %get_at = getelementptr %api, ptr %api, i32 0, i32 25
  %get = load ptr, ptr %get_at
  %settings_at = getelementptr %api, ptr %api, i32 0, i32 26
  %settings = load ptr, ptr %settings_at
  %failed = call i32 %get(ptr %settings, ptr null, ptr %found_at)
  %could_get = icmp eq i32 %failed, 0
  br i1 %could_get, label %compare_settings, label %forget
forget:
  %clear_at = getelementptr %api, ptr %api, i32 0, i32 15
  %clear = load ptr, ptr %clear_at
  call void %clear()
  br label %slow
compare_settings:
  %found = load ptr, ptr %found_at
  %release_at = getelementptr %api, ptr %api, i32 0, i32 3
  %release = load ptr, ptr %release_at
  call void %release(ptr %found)  ; equal settings are one object, which lives for ever
  %found_number = ptrtoint ptr %found to i64
  %now = add i64 %found_number, %forks
  %same_configuration = icmp eq i64 %configuration, %now
  %busy_at = getelementptr %api, ptr %api, i32 0, i32 11
  %busy_place = load ptr, ptr %busy_at
  %busy = load i64, ptr %busy_place
  %idle = icmp eq i64 %busy, 0
  %as_before = and i1 %same_configuration, %idle
  br i1 %as_before, label %prepare, label %slow
prepare:
  %expected_list_at = getelementptr %record, ptr %record, i32 0, i32 3
  %expected_list = load ptr, ptr %expected_list_at
  %device_offset_at = getelementptr %api, ptr %api, i32 0, i32 13
  %device_offset = load i64, ptr %device_offset_at
  %device_at = getelementptr %api, ptr %api, i32 0, i32 14
  %device = load ptr, ptr %device_at
  br label %next
next:
  %i = phi i64 [ 0, %prepare ], [ %i_after, %passed ]
  %tensors = phi i64 [ 0, %prepare ], [ %tensors_after, %passed ]
  %more = icmp slt i64 %i, %total
  br i1 %more, label %argument, label %complete
argument:
  %argument_at = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %argument_at
  %expected_at = getelementptr ptr, ptr %expected_list, i64 %i
  %expected = load ptr, ptr %expected_at
  %object_class_at = getelementptr i8, ptr %object, i64 $type
  %object_class = load ptr, ptr %object_class_at
  %is_tensor = icmp eq ptr %object_class, %class
  br i1 %is_tensor, label %typed, label %plain_object
plain_object:
  %same_object = icmp eq ptr %object, %expected
  br i1 %same_object, label %passed, label %slow
typed:
  %type_at = getelementptr i8, ptr %object, i64 %type_offset
  %type = load ptr, ptr %type_at
  %same_type = icmp eq ptr %type, %expected
  %where_at = getelementptr i8, ptr %object, i64 %device_offset
  %where = load ptr, ptr %where_at
  %same_device = icmp eq ptr %where, %device
  %fits = and i1 %same_type, %same_device
  br i1 %fits, label %taken, label %slow
taken:
  %data_at = getelementptr i8, ptr %object, i64 %data_offset
  %data = load ptr, ptr %data_at
  %slot = getelementptr ptr, ptr %cells, i64 %tensors
  store ptr %data, ptr %slot
  %one_more = add i64 %tensors, 1
  br label %passed
passed:
  %tensors_after = phi i64 [ %tensors, %plain_object ], [ %one_more, %taken ]
  %i_after = add i64 %i, 1
  br label %next
complete:
  %tensors_at = getelementptr %record, ptr %record, i32 0, i32 11
  %tensors_wanted = load i64, ptr %tensors_at
  %all_tensors = icmp eq i64 %tensors, %tensors_wanted
  br i1 %all_tensors, label %make, label %slow
make:
  %scratch_at = getelementptr %record, ptr %record, i32 0, i32 12
  %scratch = load ptr, ptr %scratch_at
  %is_short = icmp ne ptr %scratch, null
  br i1 %is_short, label %short, label %long
short:
  %by_short = call %made @short(ptr %api, ptr %record, ptr %cells, i64 %tensors, ptr %scratch)
  br label %ended
long:
  %by_long = call %made @long(ptr %api, ptr %record, ptr %cells, i64 %tensors)
  br label %ended
ended:
  %made = phi %made [ %by_short, %short ], [ %by_long, %long ]
  %undone = extractvalue %made %made, 1
  br i1 %undone, label %slow, label %done
done:
  %tensor = extractvalue %made %made, 0
  ret ptr %tensor
slow:
  %function_at = getelementptr %cell, ptr %cell, i32 0, i32 1
  %function = load ptr, ptr %function_at
  %vectorcall_at = getelementptr %api, ptr %api, i32 0, i32 4
  %vectorcall = load ptr, ptr %vectorcall_at
  %result = call ptr %vectorcall(ptr %function, ptr %args, i64 %count, ptr %keywords)
  ret ptr %result
}
"""
