/*
 * Tensors of intermediate results as frames (--dump PATTERNS --dump-to FILE): an engine's tap that writes what it is
 * shown, and nothing else, so that no answer changes.
 */
#ifndef DS_SERVE_DUMP_H
#define DS_SERVE_DUMP_H

#include "engine/engine.h"
#include "frame/hello.h"

/* What runs of the MTP layer, which counts as the one after the last: nothing, what its KV comes from, or all. */
enum dump_mtp { DUMP_MTP_NONE, DUMP_MTP_KV, DUMP_MTP_ALL };

struct dump_options {
	const char *patterns;   /* "layer.*.attn_out,final": shell patterns of point names */
	const char *to;         /* a file, "-", or unix:PATH, tcp:HOST:PORT, fd:N */
	bool force;             /* overwrite a file, write to a terminal */
	enum dump_mtp mtp;
	bool stdout_taken;      /* "-" is the data's */
	int64_t patience_ns;    /* for a reader that takes nothing */
};

struct dump;

/* DS_USAGE where a pattern matches no point of the model (the text lists them) or `to` exists; DS_IO, DS_UNAVAILABLE.
 * hello: what the dump's says, with the role "dump". */
int dump_open(struct dump **d, const struct dump_options *o, const struct model *m, const struct hello *hello,
	struct ds_err *err);
void dump_tap(void *d, const struct tap_tensor *t); /* an engine_tap; what fails is kept for dump_error */
int dump_error(const struct dump *d, struct ds_err *err); /* 0, or why writing failed */
/* Writes END and renames the file, unless writing failed before.  d is freed. */
int dump_close(struct dump *d, struct ds_err *err);

#endif
