/*
 * What a program that ends early must not leave behind: files, and directories of files, that are half made.
 */
#ifndef DS_BASE_LEFTOVER_H
#define DS_BASE_LEFTOVER_H

/* path is kept by reference until leftover_done.  Eight at a time; what is more is not removed by a signal.  One
 * thread adds and takes away; leftover_remove may run in another meanwhile. */
void leftover_add(const char *path);
void leftover_done(const char *path);
/* Deletes all of them.  For signal handlers, too. */
void leftover_remove(void);
/* Deletes a file, or a directory with the files in it; what is not there is deleted.  0, or -1 and errno.  For signal
 * handlers, too. */
int leftover_delete(const char *path);

#endif
