"""What the operating system gives the stack: memory to share and to lock, disks, files, the C libraries, a readable Python."""
