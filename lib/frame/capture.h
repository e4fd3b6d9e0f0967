/*
 * A capture read once and kept as an index: where the rows of its tensors lie, what its tokens are.  Payloads stay in
 * the file (a pipe is spooled to a temporary one, without a name), so memory is taken by rows and frames, not by bytes.
 *
 * Every frame is checked as it is read: order, checksums, hashes, tensor rows.
 */
#ifndef DS_FRAME_CAPTURE_H
#define DS_FRAME_CAPTURE_H

#include "base/map.h"
#include "frame/hello.h"
#include "frame/messages.h"
#include "frame/point.h"

/* count rows of cols elements, one after the other. */
struct cap_rows {
	size_t key;                /* of capture.keys */
	size_t turn;               /* of the stream: by its first frame in the capture */
	uint64_t stream, first, count, cols;
	uint64_t at;               /* byte of the first row within the file, or the spool of decompressed payloads */
	uint64_t order;            /* later ones replace earlier ones */
	enum dtype type;
	bool plain;                /* at is within the spool */
};

struct cap_token {
	size_t turn;
	uint64_t stream, choice, index, order;
	uint32_t id;
	bool has_logprob, more;    /* more: meta has other keys, too */
	double logprob;
	uint64_t meta_at;
	uint32_t meta_len;
};

/* A frame that is neither rows nor a token: compared by its meta. */
struct cap_frame {
	unsigned type;
	size_t turn;
	uint64_t stream, ordinal;  /* the how manieth of its type and stream */
	uint64_t number, meta_at;
	uint32_t meta_len;
};

/* choice: which of the request's the stream is of; others than 0 have streams of their own in tensor frames only. */
struct cap_name { uint64_t stream, choice; char id[REQUEST_ID_MAX + 1]; };

struct capture {
	const char *name;
	int fd, spool;             /* spool: -1 until it is needed */
	uint64_t spooled;
	struct hello hello;
	struct point_set keys;
	struct cap_rows *rows;
	struct cap_token *tokens;
	struct cap_frame *frames;
	struct cap_name *names;
	uint64_t *streams;         /* by turn */
	size_t row_count, row_cap, token_count, token_cap, frame_count, frame_cap, name_count,
		name_cap, stream_count, stream_cap;
	struct map name_map, ordinals, turns;
	uint64_t order;
};

/* Rows of KV frames are those of point "cache" of each layer; tensors of other frames are points of no layer,
 * "request.tokens".  DS_NOINPUT, DS_DATA, DS_IO, DS_OS. */
int capture_open(struct capture *c, const char *path, uint64_t max_frame, bool force, struct ds_err *err);
void capture_close(struct capture *c);

/* Bytes of rows [row, row + n) into dst; DS_IO, DS_DATA where the file has become shorter. */
int capture_read(const struct capture *c, const struct cap_rows *r, uint64_t row, uint64_t n, void *dst,
	struct ds_err *err);
int capture_meta(const struct capture *c, uint64_t at, uint32_t len, struct meta_doc **d, struct ds_err *err);
/* NULL where it is not known. */
const struct cap_name *capture_name(const struct capture *c, uint64_t stream);

/* Gives the streams other turns; turn: [stream_count]. */
void capture_turns(struct capture *c, const size_t *turn);

/* Sorts rows by (rank of key, turn of the stream, position) and lets later rows replace earlier ones, so that all are
 * disjoint.
 * rank: [keys.n]. */
int capture_settle(struct capture *c, const size_t *rank, struct ds_err *err);

#endif
