package state

import (
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxClients is the most clients that are remembered of one service.
	maxClients = 4096
	// clientMemory bounds what is remembered of all services together: with more than about 400 services each has fewer
	// clients, with 5,000 services 335.
	clientMemory = 64 << 20
	// clientAge is how long a client counts after it asked.
	clientAge = time.Hour
	// clientRate is how many samples a second are wanted of one service that is asked more often. A full reservoir then
	// tells of the last ten minutes or so.
	clientRate = 8
	// clientSlotCount is how many samples fit between two ticks. When there is no more room, sampling ends until
	// the next tick has ended.
	clientSlotCount = 8192
	// clientWindow is the time constant of the mean rate at which a service is asked.
	clientWindow = 10 * time.Minute
)

// A Client is one that asked a service: an LDNS, and the prefix that it passed on and that the policy could use, if any.
type Client struct {
	LDNS netip.Addr
	ECS  netip.Prefix

	// Weight is how many queries a second of late the client stands for. It makes the clients of services that are asked
	// more and less often comparable. The clients of one service have the same; whoever asks more often is there more
	// often.
	Weight float64
}

// clientSlots collects sampled clients between two ticks, in fixed memory. A slot takes a cache line, so that workers
// which write to different ones do not contend.
type clientSlots struct {
	// full is when, in nanoseconds after clients.since, one found no room: then nobody looks for any until the next tick has ended.
	// 0: there is room.
	full  atomic.Int64
	_     [56]byte
	slots [clientSlotCount]clientSlot
}

// A clientSlot is owned as an askedSlot is: by whoever took it from free, or from full, to busy. Nobody else reads it.
type clientSlot struct {
	state   atomic.Uint32
	words   [4]uint64 // LDNS, and the address of the prefix; IPv4 as mapped into IPv6
	service uint32
	meta    uint32
	_       [16]byte
}

// What meta says beside the length of the ECS prefix, in its low 8 bits.
const (
	clientHasECS  = 1 << 8
	clientECSIsV4 = 1 << 9

	clientHalvings = 16 // how often the share that was sampled had been halved, from this bit on
)

// Served records that a client was decided for, so that forecasts know who asks. chance is a random number of the
// query's; a share of the calls for a service that is asked often does nothing more. Hot path: no lock, no allocation,
// and, but once between two ticks at most, no clock is read and nothing is written that other workers must read.
func (s *Store) Served(service *Service, ldns netip.Addr, ecs netip.Prefix, chance uint64) {
	if service.sampled == nil || !ldns.IsValid() {
		return
	}
	mask := service.sampled.Load()
	if chance&mask != 0 {
		return
	}
	if c := s.clientSlots; c.full.Load() == 0 && !c.note(service.id, ldns, ecs, uint32(bits.Len64(mask)), chance>>32) {
		c.full.CompareAndSwap(0, max(int64(s.now().Sub(s.clients.since)), 1))
	}
}

// note notes a client that stands for 1<<halvings queries. It reports whether there was room. It looks into 16 slots, so that it does
// not fail before most are full.
func (c *clientSlots) note(service uint32, ldns netip.Addr, ecs netip.Prefix, halvings uint32, at uint64) bool {
	for range 16 {
		sl := &c.slots[at%clientSlotCount]
		at += at>>16 | 1
		if sl.state.Load() != slotFree || !sl.state.CompareAndSwap(slotFree, slotBusy) {
			continue
		}
		hi, lo := halves(ldns)
		sl.words[0], sl.words[1] = hi, lo
		meta := halvings << clientHalvings
		if ecs.IsValid() {
			hi, lo = halves(ecs.Addr())
			sl.words[2], sl.words[3] = hi, lo
			meta |= uint32(ecs.Bits()) | clientHasECS
			if ecs.Addr().Is4() {
				meta |= clientECSIsV4
			}
		}
		sl.meta, sl.service = meta, service
		sl.state.Store(slotFull)
		return true
	}
	return false
}

// A reservoir holds recent clients of one service. It is kept by the service's name, so that it survives reloads.
//
// While there is room every sample is kept; then each takes the place of one that chance chooses, so that what is there
// fades with the number of samples that came after it. The share of the queries that is sampled is halved and doubled so
// that about as many come in each second: within a second clients count by how often they ask, and the busy seconds of a
// busy service count no more than the others.
type reservoir struct {
	mask *atomic.Uint64 // fixed at construction; a query whose chance has none of these bits is sampled

	// Guarded by clients.mu.
	kept    []keptClient
	got     int       // samples since adapted
	asked   float64   // queries that they stand for
	adapted time.Time // when it last was
	rate    float64   // mean of queries a second
}

// keptClientSize is the size of a keptClient in memory.
const keptClientSize = 40

type keptClient struct {
	words [4]uint64
	at    uint32 // seconds after clients.since
	meta  uint32
}

// clients knows who asked for the services of late.
type clients struct {
	since time.Time // fixed at construction

	mu sync.Mutex
	// All guarded by mu.
	most    int                   // clients of one service
	wanted  float64               // samples of a second of one service
	adapted time.Time             // when a reservoir last was
	ticking bool                  // a tick is under way
	closed  bool                  // the room was full when it began
	from    time.Duration         // when, after since, the samples began that the next tick takes in; while one is closed, this one
	sampled time.Duration         // how long the samples were taken that the tick takes in
	all     map[uint32]*reservoir // by the service's id
	list    []*reservoir          // all
}

// configure says which services there are. What was remembered of others is forgotten.
func (c *clients) configure(services []*service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := max(len(services), 1)
	c.most = min(maxClients, clientMemory/keptClientSize/n)
	c.wanted = min(clientSlotCount/4/float64(n), clientRate)
	c.all, c.list = make(map[uint32]*reservoir, len(services)), make([]*reservoir, 0, len(services))
	for _, svc := range services {
		r := svc.recent
		c.all[svc.id], c.list = r, append(c.list, r)
		if r.adapted.IsZero() {
			r.adapted = c.adapted
		}
		if cap(r.kept) > c.most {
			rand.Shuffle(len(r.kept), func(i, j int) { r.kept[i], r.kept[j] = r.kept[j], r.kept[i] })
			r.kept = append(make([]keptClient, 0, c.most), r.kept[:min(len(r.kept), c.most)]...)
		}
	}
}

// drain takes in who asked since the last tick: up to most of them, those in the slots from at on, which it moves on. It returns
// how many more it could have taken.
func (c *clients) drain(slots *clientSlots, at *int, most int, now time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *at == 0 && !c.ticking {
		end, full := now.Sub(c.since), time.Duration(slots.full.Load())
		if c.ticking, c.closed = true, full > 0; c.closed {
			c.sampled = full - c.from
		} else {
			c.from, c.sampled = end, end-c.from
		}
	}
	second := uint32(now.Sub(c.since) / time.Second)
	for ; *at < len(slots.slots) && most > 0; *at++ {
		sl := &slots.slots[*at]
		if sl.state.Load() != slotFull || !sl.state.CompareAndSwap(slotFull, slotBusy) {
			continue
		}
		k := keptClient{at: second, meta: sl.meta, words: sl.words}
		r := c.all[sl.service]
		sl.state.Store(slotFree)
		if r != nil {
			r.add(k, c.most)
		}
		most--
	}
	return most
}

// adapt ends a tick for up to most reservoirs, from the one at on. It returns as drain does.
func (c *clients) adapt(slots *clientSlots, at *int, most int, now time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; *at < len(c.list) && most > 0; *at++ {
		r := c.list[*at]
		if passed := now.Sub(r.adapted); passed > 0 && c.sampled > 0 {
			r.adapt(passed, min(c.sampled, passed), c.wanted)
			r.adapted = now
		}
		most--
	}
	if *at >= len(c.list) && most > 0 && c.ticking { // the tick's last call that has something to do
		if c.ticking = false; c.closed {
			c.from = now.Sub(c.since)
			slots.full.Store(0)
		}
		*at = math.MaxInt // whatever a reload brings meanwhile
	}
	c.adapted = now
	return most
}

// add takes in one sample; at most most are kept.
func (r *reservoir) add(k keptClient, most int) {
	r.got++
	r.asked += float64(uint64(1) << (k.meta >> clientHalvings))
	if len(r.kept) >= most {
		r.kept[rand.IntN(len(r.kept))] = k
		return
	}
	if len(r.kept) == cap(r.kept) { // append would take more than there may be
		r.kept = append(make([]keptClient, 0, min(max(2*len(r.kept), 16), most)), r.kept...)
	}
	r.kept = append(r.kept, k)
}

// adapt ends a tick, before which samples were taken for some of the time that has passed: it works the rate out, and chooses the
// share that is sampled in the next.
func (r *reservoir) adapt(passed, sampled time.Duration, wanted float64) {
	mask := r.mask.Load()
	perSecond := float64(r.got) / sampled.Seconds()
	halvings := 3 + bits.Len(uint(r.got)) // no more at once: few samples tell little
	r.rate += (r.asked/sampled.Seconds() - r.rate) * -math.Expm1(-float64(passed)/float64(clientWindow))
	r.got, r.asked = 0, 0
	next := mask
	if perSecond < wanted/2 {
		next >>= 1
	}
	for ; perSecond > 2*wanted && halvings > 0 && next < 1<<31-1; perSecond /= 2 {
		next = next<<1 | 1
		halvings--
	}
	if next != mask { // else the workers need not read it anew
		r.mask.Store(next)
	}
}

// old reports whether the client asked too long ago to count.
func (c *clients) old(k keptClient, now time.Time) bool {
	return now.Sub(c.since)-time.Duration(k.at)*time.Second >= clientAge
}

// Clients returns up to 4,096 recent clients of the service, fewer where there are more than about 400 services, and none
// for one that is not configured. Names that a wildcard service answers count to it. None of them asked more than an hour
// ago; of a service that is asked often, most asked within the last ten minutes.
func (s *Store) Clients(service string) []Client {
	now := s.now()
	s.mu.Lock()
	svc := s.services[service]
	s.mu.Unlock()
	if svc == nil {
		return nil
	}
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	r := svc.recent
	list := make([]Client, 0, len(r.kept))
	for _, k := range r.kept {
		if !s.clients.old(k, now) {
			list = append(list, k.client())
		}
	}
	for i := range list {
		list[i].Weight = r.rate / float64(len(list))
	}
	return list
}

func (k *keptClient) client() Client {
	c := Client{LDNS: join128(k.words[0], k.words[1]).Unmap()}
	if k.meta&clientHasECS != 0 {
		addr := join128(k.words[2], k.words[3])
		if k.meta&clientECSIsV4 != 0 {
			addr = addr.Unmap()
		}
		c.ECS = netip.PrefixFrom(addr, int(k.meta&0xff))
	}
	return c
}

// join128 returns the address that halves took apart, an IPv4 one as mapped into IPv6.
func join128(hi, lo uint64) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}
