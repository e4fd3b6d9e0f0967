/*
 * HELLO: the first frame of every stream, in each direction of a socket.
 */
#ifndef DS_FRAME_HELLO_H
#define DS_FRAME_HELLO_H

#include "frame/frame.h"

struct hello {
	uint64_t minor;
	char program[32], version[32], role[32];
	char model[80];       /* model fingerprint, "" where no model is involved */
	struct {
		enum dtype type;  /* DT_NONE: the stream carries no KV */
		uint64_t block, layers, dim; /* tokens a block, layers without MTP's, elements a row */
	} kv;
	char quant[32];       /* "fp8", "bf16", ...: arithmetic that must agree; "" unknown */
	uint64_t vocab;       /* 0 unknown */
	uint64_t mtp;         /* MTP layers in use: KV blocks have so many layers more */
	uint64_t rank, world; /* 0 of 1 */
	/* no answers come back on this connection: they go where the program was told (-l with -o) */
	bool elsewhere;
	char via[512];        /* programs the stream came through, comma-separated: "ds-token/0.1,ds-prefill/0.1" */
};

void hello_put(struct meta_builder *b, const struct hello *h);
int hello_get(const struct frame *f, struct hello *h, struct ds_err *err);
/* Who speaks frames, but takes no requests and gives no answers (a store, a dump) is no stage: DS_PROTO. */
int hello_check_stage(const struct hello *theirs, const char *peer, struct ds_err *err);
/* Of two stages of a pipeline: compares what both state (empty or 0 on either side: not compared): model, vocab, quant,
 * kv.  DS_PROTO with both values in the text. */
int hello_check(const struct hello *mine, const struct hello *theirs, const char *peer, struct ds_err *err);
/* Appends "program/version" to via; the oldest entries give way when it is full. */
void hello_via(struct hello *h, const char *program, const char *version);

#endif
