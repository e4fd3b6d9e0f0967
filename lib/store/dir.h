/*
 * A store in a directory: append-only segment files, each a DSF1 stream that ds-frame reads, and an index in memory.
 *
 *   format                    what the directory is, and which version
 *   lock                      held while segments are made, removed or taken over
 *   sync                      there once a put was answered as being on disk: what is moved has to be, too
 *   s-TIME-WRITER.seg         items that came in;  m-TIME-WRITER.seg  items that were moved since they are in use
 *   *.idx                     beside a complete segment: what is where in it, to begin quickly; made again if lost
 *
 * A segment is written by one process, which holds a lock on it as long; any other reads it, also while it grows.
 * Readers have it open: one that is removed under them still reads as it was.  Nothing is ever written twice in place,
 * but for the heads of items that were deleted or found broken, which become droppable frames.  A directory that is
 * made here is its owner's alone: items say what users wrote.  ds-frame(5) has the formats.
 *
 * Eviction is S3-FIFO (Yang et al., SOSP 2023) by whole segments: items that came in are written to small segments,
 * about half of the capacity; when the oldest of these is removed, what was asked for since goes on to a main
 * segment, the rest leaves its key in a list of ghosts; what comes back soon goes to a main segment at once.  The
 * oldest main segment gives up what was not asked for since it was written.
 */
#ifndef DS_STORE_DIR_H
#define DS_STORE_DIR_H

#include <stdio.h>

#include "store/store.h"

/* What ds-kvstore does to a directory, whether or not it is in use.  DS_NOINPUT: no such directory; DS_DATA: it is no
 * store; DS_PROTO: another version. */

/* Calls each for every item that is there, in the order of the files; what it returns other than 0 ends it. */
int dir_list(const char *path, int (*each)(void *ctx, const struct store_item *item, const char *segment,
	uint64_t offset, struct ds_err *err), void *ctx, struct ds_err *err);
struct dir_report {
	uint64_t segments, items, bytes, dead_bytes; /* dead: of items that are deleted, expired or there twice */
	uint64_t evicted, evicted_bytes; /* by gc, since the capacity is less than what was there */
	uint64_t bad_items, torn_bytes, bad_indices; /* torn: after the last whole item of a segment that was cut */
};
/* Reads every byte.  tell: once for each fault, a line.  DS_NO: an item is wrong (a torn end is not). */
int dir_verify(const char *path, void (*tell)(void *ctx, const char *line), void *ctx, struct dir_report *r,
	struct ds_err *err);
/* Writes what is alive in segments with dead bytes, or in several small ones, anew and removes them; makes lost
 * indices.  In r: what is there then, and the dead bytes and the damaged items that were.  tell: as above. */
int dir_gc(const char *path, const struct store_options *o, void (*tell)(void *ctx, const char *line), void *ctx,
	struct dir_report *r, struct ds_err *err);
/* Of a store that is a directory and open: the dead bytes of its complete segments, which gc would free. */
int dir_dead(struct store *s, uint64_t *bytes, struct ds_err *err);
/* All items as one stream of frames; and such a stream's into the store: those that are there already are skipped, but
 * for values with names that were put earlier, which are replaced. */
struct dir_copied {
	uint64_t items, already;
	uint64_t left_out; /* not exported: damaged, or not to be read */
};
int dir_export(const char *path, struct frame_writer *w, struct dir_copied *c, struct ds_err *err);
int dir_import(const char *path, const struct store_options *o, int fd, const char *name, struct dir_copied *c,
	struct ds_err *err);

#endif
