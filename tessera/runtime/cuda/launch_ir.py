"""The launches of a program in LLVM IR: fill in addresses, then call the driver for each kernel."""

from __future__ import annotations

from string import Template

STREAM = 32  # where CUlaunchConfig has its stream
CONFIG_BYTES = 56  # of CUlaunchConfig (cuda.h); launch.py asserts it


def launch_ir(function: str) -> str:
    """The module of a launcher that calls this function of a driver."""
    call = _CALLS[function].strip("\n")
    return Template(_LAUNCH).substitute(stream=STREAM, config=CONFIG_BYTES, call=call)


# By the name in the header.  CUDA reads the configuration; HIP is told what it says: grid, block
# and shared memory are
# its first seven numbers.
_CALLS = {
    "cuLaunchKernelEx": """
  %code = call i32 %launch(ptr %config, ptr %kernel, ptr %list, ptr null)
""",
    "hipModuleLaunchKernel": """
  %told = load [7 x i32], ptr %config
  %grid_x = extractvalue [7 x i32] %told, 0
  %grid_y = extractvalue [7 x i32] %told, 1
  %grid_z = extractvalue [7 x i32] %told, 2
  %block_x = extractvalue [7 x i32] %told, 3
  %block_y = extractvalue [7 x i32] %told, 4
  %block_z = extractvalue [7 x i32] %told, 5
  %shared = extractvalue [7 x i32] %told, 6
  %code = call i32 %launch(ptr %kernel, i32 %grid_x, i32 %grid_y, i32 %grid_z, i32 %block_x, i32 %block_y, i32 %block_z, i32 %shared, ptr %stream, ptr %list, ptr null)
""",  # noqa: E501
}

_LAUNCH = """
; Slots for addresses, what they hold, where they are; tensor maps and what they point at; launches, their
; configurations, kernels and parameters; the function that launches, cuTensorMapReplaceAddress.
%plan = type { i64, ptr, ptr, i64, ptr, i64, ptr, ptr, ptr, ptr, ptr }
%slot = type { i64, i64 }  ; cell, offset
%map = type { ptr, i64, i64 }  ; tensor map, slot of its address, its address now

; 0, or the number of the launch and the error of the driver; a tensor map has a number after all launches.
define i64 @run(ptr %plan, ptr %cells, ptr %stream) {
entry:
  %slots = load i64, ptr %plan
  %table_at = getelementptr %plan, ptr %plan, i32 0, i32 1
  %table = load ptr, ptr %table_at
  %words_at = getelementptr %plan, ptr %plan, i32 0, i32 2
  %words = load ptr, ptr %words_at
  %maps_at = getelementptr %plan, ptr %plan, i32 0, i32 3
  %maps = load i64, ptr %maps_at
  %map_table_at = getelementptr %plan, ptr %plan, i32 0, i32 4
  %map_table = load ptr, ptr %map_table_at
  %launches_at = getelementptr %plan, ptr %plan, i32 0, i32 5
  %launches = load i64, ptr %launches_at
  %configs_at = getelementptr %plan, ptr %plan, i32 0, i32 6
  %configs = load ptr, ptr %configs_at
  %kernels_at = getelementptr %plan, ptr %plan, i32 0, i32 7
  %kernels = load ptr, ptr %kernels_at
  %parameters_at = getelementptr %plan, ptr %plan, i32 0, i32 8
  %parameters = load ptr, ptr %parameters_at
  %launch_at = getelementptr %plan, ptr %plan, i32 0, i32 9
  %launch = load ptr, ptr %launch_at
  %replace_at = getelementptr %plan, ptr %plan, i32 0, i32 10
  %replace = load ptr, ptr %replace_at
  br label %slot
slot:
  %s = phi i64 [ 0, %entry ], [ %s_after, %fill ]
  %unfilled = icmp slt i64 %s, %slots
  br i1 %unfilled, label %fill, label %map
fill:
  %slot_at = getelementptr %slot, ptr %table, i64 %s
  %cell = load i64, ptr %slot_at
  %offset_at = getelementptr %slot, ptr %slot_at, i32 0, i32 1
  %offset = load i64, ptr %offset_at
  %base_at = getelementptr i64, ptr %cells, i64 %cell
  %base = load i64, ptr %base_at
  %address = add i64 %base, %offset
  %word_at = getelementptr i64, ptr %words, i64 %s
  store i64 %address, ptr %word_at
  %s_after = add i64 %s, 1
  br label %slot
map:
  %m = phi i64 [ 0, %slot ], [ %m_after, %mapped ]
  %unmapped = icmp slt i64 %m, %maps
  br i1 %unmapped, label %look, label %launch_next
look:
  %entry_at = getelementptr %map, ptr %map_table, i64 %m
  %of_at = getelementptr %map, ptr %entry_at, i32 0, i32 1
  %of = load i64, ptr %of_at
  %now_at = getelementptr %map, ptr %entry_at, i32 0, i32 2
  %now = load i64, ptr %now_at
  %wanted_at = getelementptr i64, ptr %words, i64 %of
  %wanted = load i64, ptr %wanted_at
  %same = icmp eq i64 %now, %wanted
  br i1 %same, label %mapped, label %change
change:
  %tensor_map = load ptr, ptr %entry_at
  %place = inttoptr i64 %wanted to ptr
  %map_code = call i32 %replace(ptr %tensor_map, ptr %place)
  %map_fine = icmp eq i32 %map_code, 0
  br i1 %map_fine, label %changed, label %map_failed
changed:
  store i64 %wanted, ptr %now_at
  br label %mapped
mapped:
  %m_after = add i64 %m, 1
  br label %map
launch_next:
  %i = phi i64 [ 0, %map ], [ %i_after, %launched ]
  %more = icmp slt i64 %i, %launches
  br i1 %more, label %launch_one, label %done
launch_one:
  %config_offset = mul i64 %i, $config
  %config = getelementptr i8, ptr %configs, i64 %config_offset
  %stream_at = getelementptr i8, ptr %config, i64 $stream
  store ptr %stream, ptr %stream_at
  %kernel_at = getelementptr ptr, ptr %kernels, i64 %i
  %kernel = load ptr, ptr %kernel_at
  %list_at = getelementptr ptr, ptr %parameters, i64 %i
  %list = load ptr, ptr %list_at
$call
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %launched, label %failed
launched:
  %i_after = add i64 %i, 1
  br label %launch_next
map_failed:
  %map_number = add i64 %launches, %m
  br label %failed
failed:
  %number = phi i64 [ %i, %launch_one ], [ %map_number, %map_failed ]
  %error = phi i32 [ %code, %launch_one ], [ %map_code, %map_failed ]
  %high = shl i64 %number, 32
  %low = zext i32 %error to i64
  %both = or i64 %high, %low
  ret i64 %both
done:
  ret i64 0
}
"""
