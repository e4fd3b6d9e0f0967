/*
 * Captures as programs that look at frames read them: a file or standard input, frame by frame to its end.
 */
#ifndef DS_FRAME_INPUT_H
#define DS_FRAME_INPUT_H

#include "frame/frame.h"

struct input {
	int fd;
	const char *name; /* for messages */
	bool seekable;    /* a regular file, at its beginning */
};

/* path "-": standard input; a terminal is refused unless `force` (DS_USAGE); DS_NOINPUT. */
int input_open(struct input *in, const char *path, bool force, struct ds_err *err);
void input_close(struct input *in);

enum { INPUT_STOP = -1 };

/*
 * Calls `each` for every complete frame, hello and end among them, until the end of the input; what `each` returns
 * other than 0 ends it: INPUT_STOP with 0, any other as the error that it is.  strict: hello must come first and only
 * then (DS_DATA).  bytes (may be NULL): how many were read.
 */
typedef int (*input_fn)(struct frame *f, void *ctx, struct ds_err *err);
int input_frames(struct input *in, uint64_t max_frame, bool strict, input_fn each, void *ctx, uint64_t *bytes,
	struct ds_err *err);
/* hello comes first, once. */
int input_order(const struct frame *f, struct ds_err *err);

#endif
