/*
 * Output files that are there only when they are complete: written under a temporary name beside the real one, renamed
 * by outfile_commit, removed by outfile_discard and by a signal that ends the program.  Pipes and devices are written
 * as they are.  One thread.
 */
#ifndef DS_BASE_OUTFILE_H
#define DS_BASE_OUTFILE_H

#include <stdbool.h>

#include "base/err.h"

struct outfile {
	int fd;           /* blocking as it was opened; -1: none */
	char *path;       /* for messages; "<stdout>" */
	char *tmp;        /* NULL: written in place */
	bool force, text; /* text may go to a terminal */
};

/* path NULL or "-": standard output.  A regular file that exists needs `force` (DS_USAGE), as do frames on a
 * terminal; DS_IO.  On failure o holds nothing. */
int outfile_open(struct outfile *o, const char *path, bool force, bool text, struct ds_err *err);
/* Closes (standard output stays open, but what closing would report is reported) and renames, the file being on disk
 * before and its name after: DS_IO.  On failure the temporary file, where it is not renamed yet, remains for
 * outfile_discard. */
int outfile_commit(struct outfile *o, struct ds_err *err);
/* Closes and removes what is not committed; does nothing to an outfile that holds nothing (all zero, fd -1). */
void outfile_discard(struct outfile *o);

#endif
