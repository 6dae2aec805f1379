"""The end of a DLPack tensor in LLVM IR: Python is called with its lock, and without an error that is under
way.

Consumers delete tensors where they like: without the lock of the interpreter, in the middle of raising an
error, after the interpreter has ended.  A Python function can be called only when that has been seen to.
"""

from __future__ import annotations

from string import Template


def dlpack_ir(plain: int, versioned: int) -> str:
    """The module, given where the two kinds of tensors have the address of the function to call."""
    return Template(_END).substitute(plain=plain, versioned=versioned)


_END = """
declare i32 @Py_IsInitialized()
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)
declare ptr @PyCapsule_GetContext(ptr)

define internal void @guarded(ptr %function, ptr %argument) {
entry:
  %kind_at = alloca ptr
  %value_at = alloca ptr
  %trace_at = alloca ptr
  %alive = call i32 @Py_IsInitialized()
  %any = icmp ne i32 %alive, 0
  br i1 %any, label %run, label %done
run:
  %lock = call i32 @PyGILState_Ensure()
  call void @PyErr_Fetch(ptr %kind_at, ptr %value_at, ptr %trace_at)
  call void %function(ptr %argument)
  %kind = load ptr, ptr %kind_at
  %value = load ptr, ptr %value_at
  %trace = load ptr, ptr %trace_at
  call void @PyErr_Restore(ptr %kind, ptr %value, ptr %trace)
  call void @PyGILState_Release(i32 %lock)
  br label %done
done:
  ret void
}

define void @delete_plain(ptr %managed) {
  %at = getelementptr i8, ptr %managed, i64 $plain
  %function = load ptr, ptr %at
  call void @guarded(ptr %function, ptr %managed)
  ret void
}

define void @delete_versioned(ptr %managed) {
  %at = getelementptr i8, ptr %managed, i64 $versioned
  %function = load ptr, ptr %at
  call void @guarded(ptr %function, ptr %managed)
  ret void
}

; Of a capsule; its context is the function to call.
define void @forget(ptr %capsule) {
  %function = call ptr @PyCapsule_GetContext(ptr %capsule)
  call void @guarded(ptr %function, ptr %capsule)
  ret void
}
"""
