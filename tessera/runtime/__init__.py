"""Running target programs: threads, compiled code, launches."""
