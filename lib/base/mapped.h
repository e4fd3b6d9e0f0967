/*
 * Files that are mapped for long.  A file that is cut meanwhile, or whose disk fails, ends a program by SIGBUS at the
 * next read of what is gone: here that becomes one line on stderr that names the file, and an exit code.
 */
#ifndef DS_BASE_MAPPED_H
#define DS_BASE_MAPPED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "base/err.h"

struct mapped; /* one mapping that is known */

/* The n bytes at p are of the file `path`, which was as st says when it was mapped.  The first one installs a handler
 * of SIGBUS for the rest of the program: where the address lies in such a mapping, it removes what is half made
 * (leftover.h), says it, and exits with DS_DATA, or DS_IO where the file is as it was; any other SIGBUS does what it
 * did before.  Call log_init first.  Any thread.  DS_OS. */
int mapped_add(struct mapped **out, const void *p, size_t n, const char *path, const struct stat *st,
	struct ds_err *err);
/* Before it is unmapped.  NULL is none. */
void mapped_remove(struct mapped *m);

/* A system call said EFAULT of some of the n bytes at p: the same in words, with the same code; 0 where they are no
 * such file's.  Any thread. */
int mapped_lost(const void *p, size_t n, struct ds_err *err);
/* DS_DATA where the file, if it still has its name, has another size or was written to: what was read of it may be a
 * mixture.  One replaced by a rename is as it was.  accept: writing is taken for harmless as long as the size stays;
 * the next call compares with what is there now.  One thread. */
int mapped_check(struct mapped *m, bool accept, struct ds_err *err);

#endif
