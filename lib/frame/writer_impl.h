/* A frame writer, as its two files know it: writer.c makes frames, writer_bytes.c gets them out. */
#ifndef DS_FRAME_WRITER_IMPL_H
#define DS_FRAME_WRITER_IMPL_H

#include "frame/internal.h"

struct frame_writer {
	int fd;
	char *name;
	bool failed, ended;
	struct ds_err error;     /* sticky, once failed */
	uint64_t seq, bytes;     /* written so far, the queue included */
	uint8_t *head;           /* head, meta and bin header of the present frame */
	size_t head_cap;
	struct iovec *iov;       /* pieces of the present frame */
	size_t iov_cap;
	uint8_t *queue;          /* what the descriptor did not take yet: [sent, queued) */
	size_t sent, queued, queue_cap;
};

/* Writes iov, which it changes; what the descriptor does not take is queued. */
int frame_out(struct frame_writer *w, struct iovec *iov, size_t n, struct ds_err *err);
/* Writes all of what was queued and iov, then n bytes of a file; a descriptor that takes nothing for its own time-out
 * fails (DS_TEMP).  iov is changed. */
int frame_out_file(struct frame_writer *w, struct iovec *iov, int fd, uint64_t offset, size_t n, struct ds_err *err);
/* Writes it all, with the descriptor `fd` beside its first byte. */
int frame_out_fd(struct frame_writer *w, struct iovec *iov, int fd, struct ds_err *err);

#endif
