/*
 * What a client and a KV store say to each other: typed forms of store frames.  ds-frame(5) is the reference for the
 * keys.  An item itself (op "put", from either side) is store/item.h.
 */
#ifndef DS_FRAME_MESSAGES_STORE_H
#define DS_FRAME_MESSAGES_STORE_H

#include "frame/frame.h"

enum { STORE_MESSAGE_KEY = 16, STORE_MESSAGE_KEYS = 16384 }; /* bytes of a key; keys in a request */

enum store_op {
	STORE_OP_NONE, /* of a frame: one that this program does not know */
	STORE_OP_HAS, STORE_OP_GET, STORE_OP_PUT, STORE_OP_DEL, STORE_OP_PIN, STORE_OP_UNPIN, STORE_OP_STAT,
	STORE_OP_DOUBT, STORE_OP_MEMORY,
	STORE_OP_OK, STORE_OP_SEGMENT, STORE_OP_RANGES,
	STORE_OP_COUNT,
};
const char *store_op_name(enum store_op op); /* "has" */
/* DS_DATA: it does not say, or no text. */
int store_op_get(const struct frame *f, enum store_op *op, struct ds_err *err);

/* ---- requests but put ---- */

struct store_request {
	enum store_op op;
	const uint8_t *keys; /* [n, 16]; stat and memory have none, del one */
	size_t n;
	bool each;           /* has: of each key, not only how many in a row */
	bool fds;            /* get: as ranges of files, whose descriptors are passed, where that is possible */
};
/* keys: put where the payload is said to be `keys` [n, 16]. */
void store_request_put(struct meta_builder *b, const struct store_request *r);
/* DS_DATA.  The keys are the frame's. */
int store_request_get(const struct frame *f, struct store_request *r, struct ds_err *err);

/* ---- put: what is said besides the item ---- */

struct store_put_request {
	bool sync, replace;
	bool shared;         /* the payload is not in the frame, but lies in the memory that was passed */
	uint64_t element;    /* bytes of an element, 0: not known; at most 16 */
	uint64_t ttl_ns;     /* 0: the store's */
};
void store_put_request_put(struct meta_builder *b, const struct store_put_request *r);
int store_put_request_get(const struct frame *f, struct store_put_request *r, struct ds_err *err);
extern const char *const store_put_request_keys[]; /* ended by NULL: what store_put_request_put may write */

/* ---- answers ---- */

/* ok: to each request one, the last frame of its answer. */
struct store_answer {
	uint64_t prefix;     /* has */
	const uint8_t *here; /* has with `each`: [n] 0 or 1; else NULL */
	size_t n;
	uint64_t got;        /* get: items that were sent */
	char result[24];     /* put */
	bool was;            /* del */
	struct meta counters; /* stat; empty otherwise */
};
void store_answer_has(struct meta_builder *b, uint64_t prefix, const uint8_t *here, size_t n);
/* DS_DATA: what an answer to op must say is not there, or of another kind.  n: of keys asked for. */
int store_answer_get(const struct frame *f, enum store_op op, size_t n, bool each, struct store_answer *a,
	struct ds_err *err);

/* segment: a file, whose descriptor comes with the frame, gets a number for the ranges that follow in this answer. */
enum { STORE_MESSAGE_SEGMENTS = 16 }; /* in one answer, between two frames of ranges */
void store_segment_put(struct meta_builder *b, uint64_t number);
int store_segment_get(const struct frame *f, uint64_t *number, struct ds_err *err); /* below the limit */

/* ranges: where the next items lie, one after the other; then the numbers of segments are free again. */
struct store_range {
	int64_t segment, offset; /* of the item's frame within the file */
	int64_t head_bytes;      /* from there to its payload */
	int64_t data_bytes;      /* of its payload as it lies there */
};
void store_ranges_put(struct meta_builder *b, size_t n);
/* Checks each: nothing is negative, no sum overflows, head_bytes is at most STORE_MESSAGE_HEAD.  *v is the frame's. */
enum { STORE_MESSAGE_HEAD = 64 << 10 };
int store_ranges_get(const struct frame *f, const struct store_range **v, size_t *n, struct ds_err *err);

#endif
