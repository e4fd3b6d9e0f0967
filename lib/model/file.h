/*
 * Small files of a model's directory, read whole.
 */
#ifndef DS_MODEL_FILE_H
#define DS_MODEL_FILE_H

#include <stddef.h>

#include "base/err.h"

struct text {
	char *p;     /* n bytes and a NUL */
	size_t n;
	char *path;  /* dir/name, for messages */
};

/* DS_NOINPUT where it cannot be opened or is no regular file (a FIFO would hang us), DS_DATA where it is longer than
 * max, DS_IO.  On failure t holds nothing. */
int file_read(const char *dir, const char *name, size_t max, struct text *t, struct ds_err *err);
/* The same; a file that is not there is 0 and t->p NULL. */
int file_read_if_there(const char *dir, const char *name, size_t max, struct text *t, struct ds_err *err);
void file_free(struct text *t);

#endif
