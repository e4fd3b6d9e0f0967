/* A store in a directory: opening, closing, looking keys up. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "store/dir_impl.h"

/* ---- memory of a thread ---- */

uint8_t *tools_room(uint8_t **p, size_t *cap, size_t n)
{
	uint8_t *q;

	if (*cap && n <= *cap)
		return *p;
	n = round_up(n ? n : 1, 4096);
	q = aligned_alloc(FRAME_ALIGN, n);
	if (!q)
		return NULL;
	free(*p);
	*p = q;
	*cap = n;
	return q;
}

int tools_new(struct tools *t, struct ds_err *err)
{
	int rc;

	*t = (struct tools){ 0 };
	t->meta = meta_new();
	t->front = mem_array(SEGMENT_FRONT_MAX, 1);
	rc = t->meta && t->front ? 0 : err_nomem(err, SEGMENT_FRONT_MAX, "a session");
	if (!rc)
		rc = frame_writer_new(&t->w, -1, "a segment", err);
	if (!rc)
		rc = frame_parser_new(&t->parser, err);
	if (rc)
		tools_free(t);
	return rc;
}

void tools_free(struct tools *t)
{
	frame_writer_free(t->w);
	frame_parser_free(t->parser);
	meta_free(t->meta);
	free(t->front);
	free(t->a);
	free(t->b);
	*t = (struct tools){ 0 };
}

/* ---- sessions ---- */

static int dir_begin(struct store_session **out, struct store *s, struct ds_err *err)
{
	struct dir_session *ss = mem_aligned(sizeof *ss);
	int rc;

	if (!ss)
		return err_nomem(err, sizeof *ss, "a session");
	ss->base.store = s;
	ss->d = (struct dir *)s;
	rc = tools_new(&ss->t, err);
	if (rc)
		free(ss);
	else
		*out = &ss->base;
	return rc;
}

static void dir_end(struct store_session *base)
{
	struct dir_session *ss = (struct dir_session *)base;

	dir_unpin_all(ss);
	tools_free(&ss->t);
	free(ss);
}

/* ---- opening and closing ---- */

static void dir_free(struct dir *d)
{
	for (uint32_t i = 0; d->seg && i < d->segs; i++) {
		struct segment *seg = d->seg[i];

		if (!seg)
			continue;
		if (seg->fd >= 0)
			close(seg->fd);
		idx_free(&seg->idx);
		pthread_mutex_destroy(&seg->sync);
		pthread_cond_destroy(&seg->synced_more);
		free(seg);
	}
	tools_free(&d->tools);
	index_free(d->index);
	free(d->seg);
	free(d->gone);
	free(d->orphans.all);
	if (d->fd >= 0)
		close(d->fd);
	if (d->lock_fd >= 0)
		close(d->lock_fd);
	free(d->path);
	free(d);
}

static void dir_locks(struct dir *d)
{
	pthread_rwlockattr_t prefer;
	pthread_condattr_t clock;

	pthread_rwlockattr_init(&prefer);
	pthread_rwlockattr_setkind_np(&prefer, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&d->lock, &prefer);
	pthread_rwlockattr_destroy(&prefer);
	pthread_mutex_init(&d->files, NULL);
	pthread_mutex_init(&d->scan, NULL);
	pthread_mutex_init(&d->write, NULL);
	pthread_mutex_init(&d->lanes, NULL);
	pthread_mutex_init(&d->flights, NULL);
	pthread_mutex_init(&d->pins, NULL);
	pthread_mutex_init(&d->orphans.work, NULL);
	pthread_mutex_init(&d->orphans.list, NULL);
	pthread_mutex_init(&d->rest, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&d->wake, &clock);
	pthread_cond_init(&d->landed, &clock);
	for (int i = 0; i < 2; i++)
		pthread_cond_init(&d->lane_free[i], &clock);
	pthread_condattr_destroy(&clock);
}

static void dir_close(struct store *s)
{
	struct dir *d = (struct dir *)s;

	if (d->threaded) {
		pthread_mutex_lock(&d->rest);
		d->stop = true;
		pthread_cond_signal(&d->wake);
		pthread_mutex_unlock(&d->rest);
		pthread_join(d->thread, NULL);
	}
	pthread_mutex_lock(&d->write);
	orphans_retry(d);
	lanes_seal(d);
	pthread_mutex_unlock(&d->write);
	dir_free(d);
}

/* Files beside segments that are not there, and half made ones of the dead. */
static void clean(struct dir *d)
{
	int fd = dir_open_file(d, ".", O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *e;

	if (!dir && fd >= 0)
		close(fd);
	while (dir && (e = readdir(dir))) {
		char name[SEGMENT_NAME];
		struct segment_id id;
		struct stat st;
		bool made = segment_parse(e->d_name, ".new", &id);

		if (!made && !segment_parse(e->d_name, ".idx", &id))
			continue;
		segment_name(&id, ".seg", name);
		if (fstatat(d->fd, name, &st, 0) < 0 && errno == ENOENT)
			unlinkat(d->fd, e->d_name, 0);
	}
	if (dir)
		closedir(dir);
}

static int take_in(struct dir *d, struct ds_err *err)
{
	bool ro = d->base.o.read_only;
	int rc = dir_write_lock(d, time_mono_ns() + DIR_OPEN_WAIT_S * (int64_t)1000000000, err);

	if (rc)
		return rc;
	if (!ro)
		rc = dir_lock(d, err);
	if (rc)
		goto out;
	rc = dir_look(d, true, err);
	if (!ro) {
		dir_inherit(d);
		clean(d);
		if (!rc && dir_capacity(d)) /* which may be less than before; what cannot go now is left to puts */
			dir_make_room(d, 0, dir_capacity(d), &(struct ds_err){ 0 });
		dir_unlock(d);
	}
out:
	dir_write_unlock(d);
	return rc;
}

/* Each segment that is read is an open file. */
static void many_files(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= r.rlim_max)
		return;
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
}

static int dir_open(struct store **out, const char *path, const struct store_options *o, struct ds_err *err)
{
	struct dir *d = mem_aligned(sizeof *d);
	int rc;

	if (!d)
		return err_nomem(err, sizeof *d, "a store");
	d->base = (struct store){ &store_dir, *o };
	if (!d->base.o.max_frame)
		d->base.o.max_frame = FRAME_MAX_DEFAULT;
	d->fd = d->lock_fd = -1;
	d->removed = 1; /* what others did, for all we know */
	keyed_random(&d->writer, sizeof d->writer);
	dir_locks(d);
	many_files();
	d->path = strdup(path);
	d->seg = mem_calloc(INDEX_NO_SEGMENT, sizeof *d->seg);
	d->gone = mem_calloc(INDEX_NO_SEGMENT, 1);
	rc = d->path && d->seg && d->gone ? 0 : err_nomem(err, INDEX_NO_SEGMENT, "a store");
	if (!rc)
		rc = index_new(&d->index, err);
	if (!rc)
		rc = tools_new(&d->tools, err);
	if (!rc)
		rc = capacity_option(d->path, &d->base.o, err);
	if (!rc)
		rc = format_open(d, err);
	if (!rc)
		rc = take_in(d, err);
	if (!rc && pthread_create(&d->thread, NULL, dir_thread, d))
		rc = err_set(err, DS_OS, "cannot start a thread");
	else
		d->threaded = !rc;
	if (rc)
		dir_free(d);
	else
		*out = &d->base;
	return rc;
}

static bool dir_spare(struct store *s)
{
	return dir_close_some((struct dir *)s);
}

const struct store_ops store_dir = {
	.scheme = "dir:", .open = dir_open, .close = dir_close, .begin = dir_begin, .end = dir_end, .has = dir_has,
	.get = dir_get, .put = dir_put, .del = dir_del, .pin = dir_pin, .stat = dir_stat, .find = dir_ref,
	.release = dir_unref, .doubt = dir_doubt, .spare = dir_spare,
};
