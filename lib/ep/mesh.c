/* What other threads ask of a mesh: it is left for its thread. */
#include "ep/mesh_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"

_Thread_local const struct mesh *mesh_here;

void mesh_lock(struct mesh *m)
{
	pthread_mutex_lock(&m->lock);
}

void mesh_unlock(struct mesh *m)
{
	pthread_mutex_unlock(&m->lock);
}

int64_t mesh_peer_timeout(const struct mesh *m)
{
	return m->cfg.peer_timeout_ns;
}

static void mesh_wake(struct mesh *m)
{
	if (m->woken || mesh_here == m)
		return;
	m->woken = true;
	while (write(m->wake, &(uint64_t){ 1 }, sizeof(uint64_t)) < 0 && errno == EINTR)
		;
}

/* Memory fails where nobody can be told: the thread gives the peer up. */
static void mesh_fail(struct mesh *m, size_t peer)
{
	ranks_add(&m->failed, peer);
	m->any_failed = true;
	mesh_wake(m);
}

void mesh_mark_dirty(struct mesh *m, struct conn *c)
{
	if (c->dirty)
		return;
	c->dirty = true;
	c->next_dirty = m->dirty;
	m->dirty = c;
	mesh_wake(m);
}

bool mesh_forsake(struct mesh *m, size_t peer, struct conn *c)
{
	struct conn *old = m->peers[peer];

	if (!old || (c && c != old))
		return false;
	m->peers[peer] = NULL;
	old->dropped = true;
	old->next_gone = m->gone;
	m->gone = old;
	return true;
}

/* ---- from any thread ---- */

/* Who is waited for is asked for a sign of life; that the way to the others is cut while nobody waits for anybody, the
 * kernel finds out, in about the same time. */
static void tcp_setup(int fd, int64_t timeout_ns)
{
	int64_t whole = (timeout_ns - 1) / 1000000000 + 1; /* the kernel takes no more than 32767 for any of these */
	int seconds = whole < INT16_MAX ? (int)whole : INT16_MAX, idle = (seconds + 1) / 2, pause = seconds / 4;
	int values[][2] = { { TCP_NODELAY, 1 }, { TCP_KEEPIDLE, idle }, { TCP_KEEPINTVL, pause ? pause : 1 },
		{ TCP_KEEPCNT, seconds > idle ? (seconds - idle) / (pause ? pause : 1) : 1 },
		{ TCP_USER_TIMEOUT, seconds * 1000 } };

	for (size_t i = 0; i < ARRAY_LEN(values); i++)
		setsockopt(fd, IPPROTO_TCP, values[i][0], &values[i][1], sizeof(int));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){ 1 }, sizeof(int));
}

static struct conn *conn_new(struct mesh *m, size_t peer, int fd)
{
	struct conn *c = mem_calloc(1, sizeof(*c));
	struct sockaddr_storage a;
	socklen_t n = sizeof(a);

	if (!c)
		return NULL;
	*c = (struct conn){ .source = { SOURCE_CONN }, .mesh = m, .peer = peer, .fd = fd, .heard_ns = time_mono_ns() };
	c->local = !getsockname(fd, (struct sockaddr *)&a, &n) && a.ss_family == AF_UNIX;
	if (!c->local)
		tcp_setup(fd, m->cfg.peer_timeout_ns);
	return c;
}

void mesh_add(struct mesh *m, size_t peer, int fd)
{
	struct conn *c = conn_new(m, peer, fd);
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = c };

	mesh_lock(m);
	if (mesh_forsake(m, peer, NULL))
		mesh_wake(m);
	if (!c || epoll_ctl(m->epoll, EPOLL_CTL_ADD, fd, &ev)) {
		close(fd);
		free(c);
		mesh_fail(m, peer);
	} else {
		m->peers[peer] = c;
	}
	mesh_unlock(m);
}

void mesh_drop(struct mesh *m, size_t peer)
{
	mesh_lock(m);
	if (mesh_forsake(m, peer, NULL))
		mesh_wake(m);
	mesh_unlock(m);
}

static int parcel_take_fds(struct parcel *p, const int *fds, size_t n, struct ds_err *err)
{
	for (size_t i = 0; i < n; i++) {
		int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);

		if (fd < 0)
			return err_errno(err, DS_OS, "cannot duplicate descriptor %d", fds[i]);
		p->fds[p->fd_count++] = fd;
	}
	p->head[4] = (uint8_t)n;
	return 0;
}

int mesh_send(struct mesh *m, size_t peer, unsigned type, const void *data, size_t n, const int *fds, size_t fd_count,
	struct ds_err *err)
{
	struct parcel *p;
	struct conn *c;

	if (type >= MESH_TYPES || n > MESH_MOST_BYTES || fd_count > MESH_MOST_FDS)
		return err_set(err, DS_BUG, "a message of type %u, %zu bytes, %zu descriptors", type, n, fd_count);
	p = parcel_new(type, NULL, data, n, false);
	if (!p)
		return err_nomem(err, n, "a message");
	if (parcel_take_fds(p, fds, fd_count, err)) {
		parcel_free(p);
		return err->code;
	}
	mesh_lock(m);
	c = m->peers[peer];
	if (c) {
		parcels_add(&c->control, p);
		mesh_mark_dirty(m, c);
	}
	mesh_unlock(m);
	if (!c)
		parcel_free(p);
	return 0;
}

void mesh_put(struct mesh *m, size_t peer, const struct mesh_put *h, const void *data, int64_t due_ns)
{
	struct parcel *p = parcel_new(WIRE_PUT, h, data, (size_t)h->bytes, true);
	struct conn *c;

	if (p)
		p->due_ns = due_ns;
	mesh_lock(m);
	c = m->peers[peer] && m->peers[peer]->known ? m->peers[peer] : NULL;
	if (c) {
		if (p)
			parcels_add(&c->puts, p);
		else
			mesh_fail(m, peer);
		mesh_mark_dirty(m, c);
	}
	mesh_unlock(m);
	if (!c)
		parcel_free(p);
}

static void mesh_queue(struct mesh *m, struct call *call)
{
	mesh_lock(m);
	call->next = NULL;
	*m->last_call = call;
	m->last_call = &call->next;
	mesh_wake(m);
	mesh_unlock(m);
}

int mesh_call(struct mesh *m, void (*fn)(void *arg), void *arg, struct ds_err *err)
{
	struct call *call = mem_calloc(1, sizeof(*call));

	if (!call)
		return err_nomem(err, sizeof(*call), "a call");
	*call = (struct call){ .fn = fn, .arg = arg, .owned = true };
	mesh_queue(m, call);
	return 0;
}

struct forget { struct mesh *m; pthread_mutex_t lock; pthread_cond_t cond; bool done; };

static void mesh_forget_here(void *arg)
{
	struct forget *f = arg;
	struct mesh *m = f->m;

	for (size_t r = 0; r < m->cfg.world; r++) {
		struct parcels puts = { 0 };
		struct conn *c;

		mesh_lock(m);
		c = m->peers[r];
		if (c) {
			puts = c->puts;
			c->puts = (struct parcels){ 0 };
			c->known = true;
		}
		mesh_unlock(m);
		parcels_free(&puts);
		m->hold_ns[r] = 0;
		if (c)
			conn_keep_half(c);
	}
	pthread_mutex_lock(&f->lock);
	f->done = true;
	pthread_cond_signal(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

void mesh_forget(struct mesh *m)
{
	struct forget f = { .m = m, .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
	struct call call = { .fn = mesh_forget_here, .arg = &f };

	mesh_queue(m, &call);
	pthread_mutex_lock(&f.lock);
	while (!f.done)
		pthread_cond_wait(&f.cond, &f.lock);
	pthread_mutex_unlock(&f.lock);
	pthread_mutex_destroy(&f.lock);
	pthread_cond_destroy(&f.cond);
}

static bool mesh_expects(const struct mesh *m, size_t r)
{
	for (size_t i = 0; i < MESH_ASKERS; i++)
		if (ranks_has(&m->expected[i], r))
			return true;
	return false;
}

void mesh_expect(struct mesh *m, enum mesh_asker asker, const struct ranks *who)
{
	int64_t now = time_mono_ns();

	mesh_lock(m);
	if (!ranks_equal(&m->expected[asker], who)) {
		for (size_t r = ranks_next(who, 0); r < m->cfg.world; r = ranks_next(who, r + 1))
			if (!mesh_expects(m, r))
				m->since_ns[r] = now;
		m->expected[asker] = *who;
		mesh_wake(m);
	}
	mesh_unlock(m);
}

void mesh_timer(struct mesh *m, int64_t due_ns)
{
	mesh_lock(m);
	m->timer_ns = due_ns;
	mesh_wake(m);
	mesh_unlock(m);
}

int mesh_watch(struct mesh *m, int fd, uint32_t events, void (*fn)(void *arg, int fd, uint32_t events), void *arg,
	struct ds_err *err)
{
	struct epoll_event ev = { .events = events };
	struct watch *w;
	int rc = 0;

	mesh_lock(m);
	for (w = m->watches; w && (w->dead || w->fd != fd); w = w->next)
		;
	if (!events) {
		if (w) {
			w->dead = true;
			epoll_ctl(m->epoll, EPOLL_CTL_DEL, fd, NULL);
			mesh_wake(m);
		}
		goto out;
	}
	ev.data.ptr = w ? w : mem_calloc(1, sizeof(*w));
	if (!ev.data.ptr) {
		rc = err_nomem(err, sizeof(*w), "a watch");
		goto out;
	}
	*(struct watch *)ev.data.ptr = (struct watch){ .source = { SOURCE_WATCH }, .fd = fd, .fn = fn, .arg = arg,
		.next = w ? w->next : m->watches };
	if (epoll_ctl(m->epoll, w ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev)) {
		rc = err_errno(err, DS_OS, "cannot watch descriptor %d", fd);
		if (!w)
			free(ev.data.ptr);
		goto out;
	}
	if (!w)
		m->watches = ev.data.ptr;
out:
	mesh_unlock(m);
	return rc;
}

/* ---- beginning and end ---- */

static int mesh_watch_own(struct mesh *m, int fd, struct source *s, enum source_kind kind)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = s };

	s->kind = kind;
	return fd < 0 ? -1 : epoll_ctl(m->epoll, EPOLL_CTL_ADD, fd, &ev);
}

/* Signals are for the program's own threads. */
static int mesh_start(struct mesh *m)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	rc = pthread_create(&m->thread, NULL, mesh_run, m);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!rc)
		pthread_setname_np(m->thread, "mesh");
	return rc;
}

static void mesh_release(struct mesh *m)
{
	int fds[3] = { m->epoll, m->wake, m->timer };

	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	pthread_mutex_destroy(&m->lock);
	free(m->peers);
	free(m->since_ns);
	free(m->hold_ns);
	free(m);
}

int mesh_new(struct mesh **out, const struct mesh_config *c, struct ds_err *err)
{
	struct mesh *m = mem_calloc(1, sizeof(*m));

	*out = NULL;
	if (!m)
		return err_nomem(err, sizeof(*m), "a mesh");
	m->cfg = *c;
	m->last_call = &m->calls;
	pthread_mutex_init(&m->lock, NULL);
	m->peers = mem_calloc(c->world, sizeof(struct conn *));
	m->since_ns = mem_calloc(c->world, sizeof(int64_t));
	m->hold_ns = mem_calloc(c->world, sizeof(int64_t));
	m->epoll = epoll_create1(EPOLL_CLOEXEC);
	m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	m->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (!m->peers || !m->since_ns || !m->hold_ns) {
		err_nomem(err, c->world * sizeof(struct conn *), "connections");
	} else if (m->epoll < 0 || mesh_watch_own(m, m->wake, &m->wake_source, SOURCE_WAKE) ||
		mesh_watch_own(m, m->timer, &m->timer_source, SOURCE_TIMER)) {
		err_errno(err, DS_OS, "cannot make an event loop");
	} else {
		errno = mesh_start(m);
		if (!errno) {
			*out = m;
			return 0;
		}
		err_errno(err, DS_OS, "cannot make a thread");
	}
	mesh_release(m);
	return err->code;
}

void mesh_free(struct mesh *m)
{
	if (!m)
		return;
	mesh_lock(m);
	m->stopping = true;
	mesh_wake(m);
	mesh_unlock(m);
	pthread_join(m->thread, NULL);
	mesh_release(m);
}
