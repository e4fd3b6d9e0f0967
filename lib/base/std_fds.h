/*
 * Descriptors 0, 1 and 2 of a program that was started without some of them: the next thing opened would get the
 * number, be read as input, or have messages written into it.
 */
#ifndef DS_BASE_STD_FDS_H
#define DS_BASE_STD_FDS_H

#include <stdbool.h>

/* Occupies those that are closed with what can be neither read nor written: EBADF, as before.  Before anything else
 * is opened. */
void std_fds_hold(void);
/* The program was started without it; errno is EBADF then. */
bool std_fd_closed(int fd);

#endif
