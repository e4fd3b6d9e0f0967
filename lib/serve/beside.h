/*
 * A stream of frames that a stage writes beside its answers: the tensors of --dump-to, the loads of --loads-to.
 *
 * What fails is kept until somebody asks (beside_error); nothing is written after it.
 */
#ifndef DS_SERVE_BESIDE_H
#define DS_SERVE_BESIDE_H

#include "base/outfile.h"
#include "frame/frame.h"
#include "frame/hello.h"

struct beside_options {
	const char *option;     /* "--dump-to": for messages */
	const char *role;       /* "dump": what its hello says and messages call it */
	const char *to;         /* a file, "-", or unix:PATH, tcp:HOST:PORT, fd:N */
	bool force;             /* overwrite a file, write to a terminal */
	bool stdout_taken;      /* "-" is the answers' */
	int64_t patience_ns;    /* for a reader that takes nothing */
};

struct beside {
	struct outfile file;    /* fd -1 where it is a socket */
	int socket;             /* or -1 */
	int64_t patience_ns;
	const char *role;
	char name[300];
	struct frame_writer *w;
	struct meta_builder *meta;
	struct ds_err error;    /* code 0: fine */
};

/* hello: whose words the stream begins with, but for the role.  DS_USAGE where `to` exists, DS_IO, DS_UNAVAILABLE. */
int beside_open(struct beside *b, const struct beside_options *o, const struct hello *hello, struct ds_err *err);
/* What a write to b->w gave, with b->error as its error. */
void beside_note(struct beside *b, int rc);
/* What was written goes out: a slow reader holds us up, so that nothing is lost and nothing piles up.  One that takes
 * nothing does not do so for ever, or a service could not even be told to end. */
void beside_flush(struct beside *b);
int beside_error(const struct beside *b, struct ds_err *err); /* 0, or why writing failed */
/* Writes END and renames the file, unless writing failed before. */
int beside_close(struct beside *b, struct ds_err *err);
void beside_drop(struct beside *b); /* without END */

#endif
