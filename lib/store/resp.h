/*
 * RESP, the protocol of Redis, on a connected socket: bounded reading and writing for both of its ends.
 *
 * Reading takes lines and runs of bytes from a small buffer; what is asked for beyond it is received straight into the
 * caller's memory.  Writing gathers small things in a buffer, which is sent when it is full, together with a large
 * one, and before anything is waited for: a reply, or the next of a pipeline's commands.
 * Everything that the peer sends is checked: DS_PROTO.  DS_TEMP: the deadline; DS_UNAVAILABLE: the peer has gone.
 * After an error the connection is of no use.  Not thread-safe; distinct ones are independent.
 */
#ifndef DS_STORE_RESP_H
#define DS_STORE_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"
#include "base/mem.h"

enum {
	RESP_LINE_MAX = 16 << 10,      /* and of an inline command */
	RESP_BULK_MAX = 512 << 20,     /* as Redis: what is longer is no string */
	RESP_ELEMENTS_MAX = 1 << 20,   /* of an array, with those inside it */
};

struct resp {
	int fd;           /* the owner's */
	const char *name; /* for messages, the owner's */
	int64_t deadline; /* CLOCK_MONOTONIC; 0: none, the descriptor may block */
	const _Atomic int64_t *hurry; /* an earlier one by another thread, 0: none; or NULL */
	uint8_t *in;      /* [RESP_LINE_MAX + 2], of which [at, end) is unread */
	size_t at, end;
	struct buf out;   /* gathered */
	bool closed;      /* the peer has ended its side */
	bool drained;     /* the last read took all that had come */
	void (*stall)(void *ctx, bool begin); /* may be NULL: called around waits that are not over soon */
	void *stall_ctx;
	bool failed;      /* half of something was sent; the error stays */
	struct ds_err error;
};

int resp_open(struct resp *r, int fd, const char *name, struct ds_err *err);
void resp_close(struct resp *r); /* its memory, not the descriptor */

/* ---- reading ---- */

/* A line without its end, valid until the next call; after it there is a NUL. */
int resp_line(struct resp *r, char **line, size_t *n, struct ds_err *err);
int resp_bytes(struct resp *r, void *dst, size_t n, struct ds_err *err);
/* At least one, at most n of the bytes that come next. */
int resp_some(struct resp *r, void *dst, size_t n, size_t *got, struct ds_err *err);
int resp_skip(struct resp *r, uint64_t n, struct ds_err *err);
int resp_crlf(struct resp *r, struct ds_err *err); /* that is due here */
/* Waits until there is something to read, or the peer has ended (r->closed). */
int resp_wait(struct resp *r, struct ds_err *err);
/* Does not wait: *some: there is something, or the peer has ended. */
int resp_poll(struct resp *r, bool *some, struct ds_err *err);
/* A whole number within [min, max] and nothing else. */
bool resp_number(const char *s, size_t n, int64_t min, int64_t max, int64_t *v);

enum resp_kind { RESP_STATUS, RESP_ERROR, RESP_INT, RESP_BULK, RESP_NIL, RESP_ARRAY };
struct resp_reply {
	enum resp_kind kind;
	int64_t n;         /* of a number: it; of a string: its bytes, which follow with CRLF; of an array: its
	                    * elements, which follow */
	const char *text;  /* of a status or an error, valid until the next call */
	size_t len;
};
/* The head of a reply of RESP2. */
int resp_reply(struct resp *r, struct resp_reply *reply, struct ds_err *err);
/* What follows this head, of at most `bytes` (more: DS_PROTO). */
int resp_reply_skip(struct resp *r, const struct resp_reply *reply, uint64_t bytes, struct ds_err *err);

/* ---- writing ---- */

void resp_add(struct resp *r, const void *p, size_t n);
void resp_add_cstr(struct resp *r, const char *s);
void resp_add_head(struct resp *r, char kind, int64_t n); /* "*3\r\n", ":1\r\n" */
void resp_add_bulk(struct resp *r, const void *p, size_t n);
/* Sends what was gathered, and iov [n] behind it. */
int resp_send(struct resp *r, const struct iovec *iov, size_t n, struct ds_err *err);
int resp_flush(struct resp *r, struct ds_err *err);

#endif
