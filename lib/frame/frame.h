/*
 * DSF1 frames: reading and writing them on a file descriptor.  The layout is documented in ds-frame(5).
 *
 * A reader is a state machine that never asks for more bytes than it needs next, so that the payload of a frame is
 * read straight into the memory its user chose when the head arrived; it works on blocking and non-blocking
 * descriptors alike.
 * A writer gathers head, meta and payload into writev(2) and copies nothing, except what a non-blocking descriptor does
 * not take at once: that is queued, and the caller is told how much waits.
 * Readers and writers are not thread-safe; distinct ones are independent.
 */
#ifndef DS_FRAME_FRAME_H
#define DS_FRAME_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"
#include "base/tensor.h"
#include "frame/meta.h"

enum frame_type {
	FRAME_HELLO = 1, FRAME_REQUEST, FRAME_KV, FRAME_PREFILLED, FRAME_TOKEN, FRAME_DONE, FRAME_ERROR, FRAME_CANCEL,
	FRAME_STAT, FRAME_LOAD, FRAME_PLAN, FRAME_STORE, FRAME_TENSOR, FRAME_TEXT, FRAME_END, FRAME_TYPE_COUNT,
};

enum frame_flag { FRAME_ZSTD = 1, FRAME_MORE = 2, FRAME_DROPPABLE = 4 };

enum {
	FRAME_HEAD_BYTES = 44,
	FRAME_BIN_BYTES = 5,      /* c6 and data_len, between meta and payload */
	FRAME_META_MAX = 1 << 20,
	FRAME_ALIGN = 64,
};
#define FRAME_MAX_DEFAULT ((uint64_t)256 << 20)

const char *frame_type_name(unsigned type); /* "hello", ...; NULL if unknown */

struct frame {
	unsigned type, flags;     /* FRAME_ZSTD is never set here: the reader has decompressed */
	uint64_t stream, seq;
	uint32_t data_len;        /* as on the wire: a multiple of 64 unless the writer was another program */
	struct meta meta;         /* read-only view; valid until the next frame_reader_next */
	const uint8_t *meta_raw;  /* packed map, to forward; padding included */
	uint32_t meta_len;
	uint8_t *data;            /* payload, NULL until complete; the reader's memory or as frame_reader_into said */
	bool hashed;              /* hash is the payload's XXH3-64, known since it was read (frame_reader_hashes) */
	uint64_t hash;
	uint64_t number;          /* 0, 1, ... within the stream, for messages */
	uint64_t offset;          /* of the frame's first byte within the stream */
};

/* ---- tensors named in meta ---- */

enum { TENSOR_MAX_DIMS = 8 };

struct frame_tensor {
	char name[128];
	enum dtype type;
	size_t ndim;
	char dims[TENSOR_MAX_DIMS][32]; /* axis names */
	uint64_t shape[TENSOR_MAX_DIMS];
	uint64_t offset, nbytes;        /* within the payload */
	char scale[128];                /* name of the tensor with its block scales, or "" */
};

/* Number of rows in meta "tensors" (0 if there is none). */
size_t frame_tensor_count(const struct frame *f);
/* Row i, fully checked: known dtype, names, shape product = nbytes, within data_len. */
int frame_tensor_at(const struct frame *f, size_t i, struct frame_tensor *t, struct ds_err *err);
/* The tensor of that name; DS_DATA if absent. */
int frame_tensor_get(const struct frame *f, const char *name, struct frame_tensor *t, struct ds_err *err);
/* Compares "xxh" in meta, if there is one, with the XXH3-64 of the payload (all data_len bytes). */
int frame_check_payload(const struct frame *f, struct ds_err *err);

/* ---- reading ---- */

enum frame_event {
	FRAME_AGAIN, /* non-blocking descriptor: nothing more now */
	FRAME_HEAD,  /* head and meta are here and checked; frame_reader_into may choose where the payload goes */
	FRAME_BODY,  /* the payload is here too (also for frames without one); an END frame is given like any other */
	FRAME_EOF,   /* end of input after END */
};

struct frame_reader;

/* name: for messages ("<stdin>", a path, an address), copied.  max_data: largest payload accepted (0: 256 MiB).  The
 * reader does not close fd. */
int frame_reader_new(struct frame_reader **r, int fd, const char *name, uint64_t max_data, struct ds_err *err);
void frame_reader_free(struct frame_reader *r);

/* Moves on to the next event.  *f stays valid until the call after FRAME_BODY.  Errors name the frame number, stream
 * and byte offset: DS_DATA for bad bytes, CRC, END counts that differ and for end of input without END (truncation);
 * DS_PROTO for another magic version; an unknown type or flag without the droppable flag is DS_DATA, with it the
 * frame is skipped inside.  After an error, every further call gives the same error.  zstd payloads are decompressed
 * here, so that data and data_len are those of the plain payload. */
int frame_reader_next(struct frame_reader *r, enum frame_event *ev, struct frame **f, struct ds_err *err);
/* After FRAME_HEAD and before the next call: the payload's data_len bytes go to dst (which must stay valid until
 * FRAME_BODY). */
void frame_reader_into(struct frame_reader *r, void *dst);
/* The memory given to frame_reader_into goes away before the payload is complete: the rest of it is read and dropped,
 * no FRAME_BODY follows.  Without such memory nothing changes. */
void frame_reader_forget(struct frame_reader *r);
/* True when nothing was read yet of a next frame (a cut here is clean only after END). */
bool frame_reader_idle(const struct frame_reader *r);
bool frame_reader_ended(const struct frame_reader *r); /* END was read */
bool frame_reader_cut(const struct frame_reader *r);   /* failed: the input ended early, or cannot be read */
/* For blocking descriptors within a poll loop: ask poll(2) before each read(2) and give FRAME_AGAIN instead of
 * waiting. */
void frame_reader_polled(struct frame_reader *r, bool on);
/* Payloads that are not compressed are hashed while they are read and the processor's caches have them:
 * frame_check_payload has nothing left to do but to compare. */
void frame_reader_hashes(struct frame_reader *r, bool on);
/* Compressed payloads are refused (DS_DATA): they take memory of which the head says nothing. */
void frame_reader_no_zstd(struct frame_reader *r, bool on);
uint64_t frame_reader_bytes(const struct frame_reader *r); /* read so far: tells a silent peer from a slow one */

/* On a unix socket: descriptors that come with frames (SCM_RIGHTS) are kept, at most FRAME_FDS at a time, until
 * they are taken, oldest first, or the reader ends; without this they are lost.  -1: there is none. */
enum { FRAME_FDS = 16 };
void frame_reader_fds(struct frame_reader *r, bool on);
int frame_reader_take_fd(struct frame_reader *r);

/* ---- in memory ---- */

struct frame_parser; /* memory for the meta of one frame at a time */
int frame_parser_new(struct frame_parser **p, struct ds_err *err);
void frame_parser_free(struct frame_parser *p);
/* Bytes of the head, the meta and the bin header of the frame whose head these are; 0: no frame begins so. */
size_t frame_front_bytes(const uint8_t head[FRAME_HEAD_BYTES]);
/* A frame of which at least the front is in bytes [n]; f is valid until the next call, and points into bytes.  data is
 * NULL where n ends before the payload does; it is not decompressed, FRAME_ZSTD stays set in flags.  Neither its type
 * nor its number is looked at.  DS_DATA, DS_PROTO. */
int frame_parse(struct frame_parser *p, const uint8_t *bytes, size_t n, struct frame *f, struct ds_err *err);
/* Makes of a frame in a file one that every reader skips, as long as it was: its front [n] is changed in the first
 * FRAME_HEAD_BYTES only, which are to be written in its place.  False: that is no front. */
enum { FRAME_DROPPED = 255 }; /* its type then, with FRAME_DROPPABLE */
bool frame_drop(uint8_t *front, size_t n);

/* ---- writing ---- */

struct frame_writer;

int frame_writer_new(struct frame_writer **w, int fd, const char *name, struct ds_err *err);
void frame_writer_free(struct frame_writer *w);

/* Sends one frame; the writer numbers it.  meta: a finished builder's bytes (NULL: empty map); the writer adds padding
 * ("_").  The payload is the concatenation of iov[0..n), zero-padded to 64.  With `hash`, "xxh" is added to meta.  With
 * FRAME_ZSTD the payload is compressed here; the hash is that of the plain one.  DS_IO (DS_SIGPIPE for EPIPE) on
 * failure, also sticky. */
int frame_write(struct frame_writer *w, unsigned type, unsigned flags, uint64_t stream, const struct meta_builder *meta,
	const struct iovec *iov, int n, bool hash, struct ds_err *err);
/* Forwards a frame as it came (meta_raw and data kept, numbered anew). */
int frame_forward(struct frame_writer *w, const struct frame *f, struct ds_err *err);
/* The same with data_len bytes of a file from `offset` on as payload, which the kernel sends, and as of another stream.
 * flags: as on the wire.  For descriptors that block (SO_SNDTIMEO: DS_TEMP where nothing is taken for so long). */
int frame_forward_file(struct frame_writer *w, const struct frame *f, unsigned flags, uint64_t stream, int fd,
	uint64_t offset, struct ds_err *err);
/* A frame without payload with which `fd` is passed to who reads this unix socket, which blocks. */
int frame_write_fd(struct frame_writer *w, unsigned type, uint64_t stream, const struct meta_builder *meta, int fd,
	struct ds_err *err);
/* Makes the front of a frame without writing it: the frame is front [n], then the payload, then `pad` zeros.  The
 * front is the writer's, until its next call.  The writer counts nothing and needs no descriptor (fd -1).  flags: as on
 * the wire; with FRAME_ZSTD the payload is compressed already, and a hash is the caller's to say. */
struct frame_front { const uint8_t *p; size_t n, pad; };
int frame_encode(struct frame_writer *w, unsigned type, unsigned flags, uint64_t stream, uint64_t seq,
	const struct meta_builder *meta, const struct iovec *iov, int n, bool hash, struct frame_front *front,
	struct ds_err *err);
/* The END frame with its counts; nothing may follow. */
int frame_write_end(struct frame_writer *w, struct ds_err *err);
/* Bytes outside any frame, for programs whose output is text; never mixed with frames. */
int frame_write_raw(struct frame_writer *w, const void *p, size_t n, struct ds_err *err);
/* Bytes that wait in the queue (non-blocking descriptors). */
size_t frame_writer_queued(const struct frame_writer *w);
/* Bytes that the descriptor took so far: tells a slow reader from one that has stopped. */
uint64_t frame_writer_taken(const struct frame_writer *w);
/* Writes what waits, as far as the descriptor takes it. */
int frame_writer_flush(struct frame_writer *w, struct ds_err *err);

/* 64-bit stream id of a request name (XXH3-64, never 0). */
uint64_t frame_stream_id(const char *name, size_t n);

#endif
