/*
 * What is written reaches the disk before it gets its name, and the name before success is reported: a machine that
 * loses its power has the whole file, or none of that name.
 */
#ifndef DS_BASE_SYNC_H
#define DS_BASE_SYNC_H

#include "base/err.h"

/* A regular file, or a directory; name is for messages.  A file system that has no such operation is 0.  DS_IO. */
int sync_fd(int fd, const char *name, struct ds_err *err);
/* A directory. */
int sync_dir(const char *path, struct ds_err *err);
/* The directory in which path lies. */
int sync_parent(const char *path, struct ds_err *err);

#endif
