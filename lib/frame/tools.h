/*
 * What ds-frame does with captures, one function a command.  Results go to standard output, or frames to an output
 * file; everything is a stream and takes memory by requests and tensors' rows, never by a capture's size.
 *
 * All return an exit code with err, or with err->text empty where everything was said.
 */
#ifndef DS_FRAME_TOOLS_H
#define DS_FRAME_TOOLS_H

#include "frame/select.h"

struct tool_options {
	uint64_t max_frame;   /* largest payload accepted */
	bool force;           /* frames from and to terminals; overwrite */
	const char *output;   /* of frames; NULL: standard output */
	int64_t count;        /* values shown, frames taken; -1: the command's default */
	bool json;
};

/* One JSON line a frame. */
int tool_dump(const struct tool_options *o, const char *path, struct ds_err *err);
/* Are captures whole and sound?  No operand: standard input. */
int tool_check(const struct tool_options *o, char **paths, int n, struct ds_err *err);
/* The first frames. */
int tool_head(const struct tool_options *o, const char *path, struct ds_err *err);
/* The frames that match, whole; or, with `cut`, only the rows that match of those that hold rows. */
int tool_select(const struct tool_options *o, const struct selection *s, bool cut, const char *path,
	struct ds_err *err);
/* Several captures as one. */
int tool_merge(const struct tool_options *o, char **paths, int n, struct ds_err *err);
/* A table of what a capture holds. */
int tool_stat(const struct tool_options *o, const char *path, struct ds_err *err);

/* Compares two captures: tensors row by row, tokens, every other frame's meta.  DS_NO where they differ by more than
 * allowed. */
struct diff_options {
	double tol, atol;     /* a row, or a number in meta, may differ by either; negative: not given */
	bool common;          /* what only one of the captures has is not held against them */
};
int tool_diff(const struct tool_options *o, const struct diff_options *d, const char *a, const char *b,
	struct ds_err *err);

#endif
