"""Lines of a kernel that begins while the launch before it ends (Threads.early)."""

HEAD = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"
NEXT = "    gdc_launch_dependents()"  # the next launch may begin, where all blocks have said so
WAIT = "    gdc_wait()"  # until all that was launched before has ended and can be read
