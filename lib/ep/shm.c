/*
 * The transport of one machine: every rank's receive memory is a file in memory that the others map, so that a message
 * is written where it is read.
 *
 * Each epoch has new memory.  At its beginning a rank offers its file and its bell to every member over the mesh; of
 * another's file it maps the control page and its own part alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "ep/transport_impl.h"
#include "net/addr.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

enum { SHM_OFFER = MESH_TRANSPORT_FIRST, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* What comes with the file and the bell. */
struct offer { uint64_t epoch, world, bytes[SLOT_KINDS]; };

struct shm_peer {
	/* under the transport's lock */
	struct offer offer;      /* the last one; epoch 0: none */
	int file, offered_bell;  /* -1: taken */
	/* the compute thread's */
	struct offer taken;      /* of this epoch */
	int taken_file;
	struct control *control; /* NULL: not mapped */
	void *part;
	int bell;
};

struct shm { struct shm_peer *peers; /* [world] */ };

static struct shm_peer *shm_peer(struct transport *t, size_t r)
{
	return &((struct shm *)t->state)->peers[r];
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void shm_unmap(struct transport *t)
{
	void *own = t->own;

	for (size_t r = 0; r < t->cfg.world; r++) {
		struct shm_peer *p = shm_peer(t, r);

		if (p->control)
			munmap(p->control, t->layout.page);
		if (p->part)
			munmap(p->part, t->layout.part);
		p->control = p->part = NULL;
		close_fd(&p->bell);
		close_fd(&p->taken_file);
	}
	pthread_mutex_lock(&t->lock);
	t->own = NULL;
	pthread_mutex_unlock(&t->lock);
	if (own)
		munmap(own, t->layout.total);
}

static int shm_start(struct transport *t, struct ds_err *err)
{
	struct shm *s = t->state = mem_calloc(1, sizeof(*s));

	if (s)
		s->peers = mem_calloc(t->cfg.world, sizeof(*s->peers));
	if (!s || !s->peers)
		return err_nomem(err, t->cfg.world * sizeof(*s->peers), "ranks");
	for (size_t r = 0; r < t->cfg.world; r++)
		s->peers[r].file = s->peers[r].offered_bell = s->peers[r].taken_file = s->peers[r].bell = -1;
	return 0;
}

static void shm_stop(struct transport *t)
{
	struct shm *s = t->state;

	if (s && s->peers) {
		shm_unmap(t);
		for (size_t r = 0; r < t->cfg.world; r++) {
			close_fd(&s->peers[r].file);
			close_fd(&s->peers[r].offered_bell);
		}
		free(s->peers);
	}
	free(s);
}

/* ---- an epoch begins ---- */

static void *map_shared(int fd, size_t offset, size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);

	return p == MAP_FAILED ? NULL : p;
}

/* New receive memory; *fd is its file. */
static int shm_make(struct transport *t, int *fd, struct ds_err *err)
{
	const char *name = "ds-ep";
	void *own;

	*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (*fd < 0 && errno == EINVAL) /* before Linux 6.3 */
		*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0 || ftruncate(*fd, (off_t)t->layout.total) || fcntl(*fd, F_ADD_SEALS, SEALS))
		return err_errno(err, DS_OS, "cannot make %zu bytes of shared memory", t->layout.total);
	own = map_shared(*fd, 0, t->layout.total);
	if (!own)
		return err_errno(err, DS_OS, "cannot map %zu bytes of shared memory", t->layout.total);
	pthread_mutex_lock(&t->lock);
	t->own = own;
	pthread_mutex_unlock(&t->lock);
	return 0;
}

static int shm_offer(struct transport *t, uint64_t epoch, int fd, struct ds_err *err)
{
	struct offer o = { .epoch = epoch, .world = t->cfg.world };

	for (size_t k = 0; k < SLOT_KINDS; k++)
		o.bytes[k] = t->cfg.bytes[k];
	for (size_t r = ranks_next(&t->members, 0); r < t->cfg.world; r = ranks_next(&t->members, r + 1))
		if (r != t->cfg.rank && mesh_send(t->cfg.mesh, r, SHM_OFFER, &o, sizeof(o), (int[]){ fd, t->bell }, 2,
			err))
			return err->code;
	return 0;
}

static bool offer_missing(struct transport *t, size_t r, const void *epoch)
{
	return shm_peer(t, r)->offer.epoch != *(const uint64_t *)epoch;
}

static bool all_offered(struct transport *t, uint64_t epoch)
{
	for (size_t r = ranks_next(&t->members, 0); r < t->cfg.world; r = ranks_next(&t->members, r + 1))
		if (r != t->cfg.rank && offer_missing(t, r, &epoch))
			return false;
	return true;
}

/* With the lock held, since a newer offer may come at once. */
static void take_offers(struct transport *t)
{
	for (size_t r = ranks_next(&t->members, 0); r < t->cfg.world; r = ranks_next(&t->members, r + 1)) {
		struct shm_peer *p = shm_peer(t, r);

		p->taken = p->offer;
		p->taken_file = p->file;
		p->bell = p->offered_bell;
		p->file = p->offered_bell = -1;
	}
}

static int shm_await(struct transport *t, uint64_t epoch)
{
	const struct ranks nobody = { { 0 } };
	int64_t ask_ns = time_mono_ns() + mesh_peer_timeout(t->cfg.mesh) / 8;
	struct timespec ask = { ask_ns / 1000000000, ask_ns % 1000000000 };
	bool asked = false;
	int rc = 0;

	pthread_mutex_lock(&t->lock);
	while (!transport_over(t, epoch) && !all_offered(t, epoch)) {
		if (asked)
			transport_expect(t, &t->members, offer_missing, &epoch);
		if (asked)
			pthread_cond_wait(&t->cond, &t->lock);
		else
			asked = pthread_cond_timedwait(&t->cond, &t->lock, &ask) == ETIMEDOUT;
	}
	if (transport_over(t, epoch))
		rc = EP_BROKEN;
	else
		take_offers(t);
	pthread_mutex_unlock(&t->lock);
	if (asked)
		mesh_expect(t->cfg.mesh, MESH_ASK_TRANSPORT, &nobody);
	return rc;
}

/* A file that could shrink would end whoever reads it. */
static bool file_fits(const struct transport *t, int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	return seals >= 0 && (seals & F_SEAL_SHRINK) && !fstat(fd, &st) && st.st_size == (off_t)t->layout.total;
}

static int shm_map(struct transport *t, size_t r, struct ds_err *err)
{
	struct shm_peer *p = shm_peer(t, r);
	const struct offer *o = &p->taken;

	for (size_t k = 0; k < SLOT_KINDS; k++)
		if (o->bytes[k] != t->cfg.bytes[k] || o->world != t->cfg.world)
			return err_set(err, DS_PROTO, "rank %zu has messages of %llu bytes among %llu ranks, this one "
				"of %zu among %zu", r, (unsigned long long)o->bytes[k], (unsigned long long)o->world,
				t->cfg.bytes[k], t->cfg.world);
	if (!file_fits(t, p->taken_file))
		return err_set(err, DS_PROTO, "rank %zu offered what is not its receive memory", r);
	p->control = map_shared(p->taken_file, 0, t->layout.page);
	p->part = map_shared(p->taken_file, t->layout.page + t->cfg.rank * t->layout.part, t->layout.part);
	if (!p->control || !p->part)
		return err_errno(err, DS_OS, "cannot map %zu bytes shared with rank %zu", t->layout.part, r);
	close_fd(&p->taken_file);
	return 0;
}

static int shm_epoch(struct transport *t, uint64_t epoch, struct ds_err *err)
{
	int file = -1, rc;

	shm_unmap(t);
	rc = shm_make(t, &file, err);
	if (!rc)
		rc = shm_offer(t, epoch, file, err);
	close_fd(&file);
	if (!rc)
		rc = shm_await(t, epoch);
	for (size_t r = ranks_next(&t->members, 0); r < t->cfg.world && !rc; r = ranks_next(&t->members, r + 1))
		if (r != t->cfg.rank)
			rc = shm_map(t, r, err);
	if (!rc)
		atomic_store_explicit(&t->epoch, epoch, memory_order_release);
	return rc;
}

static bool is_bell(int fd)
{
	char path[40], what[40];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, what, sizeof(what) - 1);
	what[n > 0 ? n : 0] = 0;
	return (n < 0 || strstr(what, "eventfd")) && !fd_nonblock(fd, true);
}

/* An offer may be of an epoch that this rank has not begun: the newest is kept. */
static void shm_message(struct transport *t, size_t from, unsigned type, const void *data, size_t n, const int *fds,
	size_t fd_count)
{
	int taken[2] = { -1, -1 };
	struct shm_peer *p = shm_peer(t, from);
	struct offer o;

	if (type == SHM_OFFER && n == sizeof(o) && fd_count == 2 && is_bell(fds[1])) {
		memcpy(&o, data, sizeof(o));
		pthread_mutex_lock(&t->lock);
		if (o.epoch > p->offer.epoch) {
			p->offer = o;
			for (size_t i = 0; i < 2; i++) {
				int *at = i ? &p->offered_bell : &p->file;

				taken[i] = *at; /* an older one, never used */
				*at = fds[i];
			}
			fd_count = 0;
			pthread_cond_broadcast(&t->cond);
		}
		pthread_mutex_unlock(&t->lock);
	}
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
	close_fd(&taken[0]);
	close_fd(&taken[1]);
}

/* ---- messages ---- */

static struct slot *shm_slot(struct transport *t, size_t dst, enum slot_kind kind, size_t lane)
{
	return slot_at(&t->layout, shm_peer(t, dst)->part, kind, lane);
}

static void shm_post(struct transport *t, size_t dst, enum slot_kind kind, size_t lane, uint64_t seq, size_t bytes,
	int64_t there_ns)
{
	struct shm_peer *p = shm_peer(t, dst);

	slot_post(shm_slot(t, dst, kind, lane), p->control, p->bell, kind, seq, bytes, there_ns);
}

const struct transport_ops transport_shm = {
	.name = "shm",
	.start = shm_start,
	.stop = shm_stop,
	.epoch = shm_epoch,
	.slot = shm_slot,
	.post = shm_post,
	.message = shm_message,
};
