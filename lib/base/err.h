/*
 * Errors travel as return codes with a text beside them; libraries never print and never exit.
 *
 * Every fallible function returns 0 or one of enum ds_exit, and takes a `struct ds_err *` (never NULL) as its last
 * argument, in which it leaves one line: what failed, the subject in single quotes, why, what to do.  The code is
 * the exit code of the program that gives up on it (CONVENTIONS: sysexits numbers).
 */
#ifndef DS_BASE_ERR_H
#define DS_BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ds_exit {
	DS_OK = 0,
	DS_NO = 1,           /* the answer is no: a diff differs, a check fails */
	DS_USAGE = 64,
	DS_DATA = 65,        /* bad, corrupt or truncated input */
	DS_NOINPUT = 66,     /* cannot open input */
	DS_UNAVAILABLE = 69, /* peer or device unavailable */
	DS_BUG = 70,
	DS_OS = 71,          /* a system call failed, no memory */
	DS_IO = 74,          /* reading or writing failed */
	DS_TEMP = 75,        /* try again: draining, full, deadline */
	DS_PROTO = 76,       /* the peer speaks another version, model or layout */
	DS_CONFIG = 78,      /* configuration, rank environment */
	DS_SIGPIPE = 141,
};

struct ds_err {
	int code;
	bool full;       /* there is no room, on a disk or in a store */
	char text[1024]; /* one line; control characters are replaced by '?' */
};

/* Sets code and text, returns code: `return err_set(err, DS_DATA, "bad magic in '%s'", path);` */
int err_set(struct ds_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same for lack of room. */
int err_full(struct ds_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* As err_set with ": strerror(errno)" appended; a full disk and a quota are a lack of room. */
int err_errno(struct ds_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* What "frame" lacks where n of them are spoken of: "s", or nothing for 1. */
const char *plural(uint64_t n);
/* Puts `fmt: ` in front of the present text, keeps and returns the code. */
int err_prefix(struct ds_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Makes a text fit for one line of a terminal: control characters (C0, C1) and marks that turn the writing direction
 * become '?'. */
void err_one_line(char *text);
/* "out of memory: N bytes for what" with DS_OS. */
int err_nomem(struct ds_err *err, size_t bytes, const char *what);

#endif
