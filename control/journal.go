package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
)

const (
	journalFile   = "orders.db"
	journalFormat = "gslbd orders 1"
)

// The buckets beside those of the kinds of records: what the journal says of itself, and what only this gslbd is to know.
var (
	metaBucket  = []byte("meta")
	marksBucket = []byte("marks")
	formatKey   = []byte("format")
	countKey    = []byte("records") // how many there must be, so that lost ones are missed
)

// A journal keeps records on disk. Once anything in it was found wrong it takes no more, so that what is left of it stays
// as it is for whoever looks into it.
type journal struct {
	path string

	mu    sync.Mutex
	db    *bbolt.DB // nil: it takes no records
	fault string    // why, and what to do
	full  string    // why the last write failed; "": it did not. The next is tried all the same
	count uint64    // of records in it
}

// openJournal opens the journal in a directory and returns what could be read of it: all of it unless fault is set. It
// creates the file where there is none. It never fails: see journal.fault.
func openJournal(dir string) (j *journal, recs []Record, marks map[string]string) {
	j = &journal{path: filepath.Join(dir, journalFile)}
	marks = map[string]string{}
	err := guarded(func() error {
		if err := j.create(); err != nil {
			return err
		}
		db, err := bbolt.Open(j.path, 0o600, &bbolt.Options{Timeout: time.Second})
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
			return errors.Join(err, j.readOnly(&recs, marks))
		}
		if err != nil {
			return err
		}
		if recs, err = j.read(db, marks); err != nil {
			_ = guarded(db.Close)
			return err
		}
		j.db, j.count = db, uint64(len(recs))
		return nil
	})
	if err != nil {
		j.fault = j.advice(err, len(recs))
	}
	return j, recs, marks
}

// readOnly reads what there is where nothing can be written.
func (j *journal) readOnly(recs *[]Record, marks map[string]string) error {
	db, err := bbolt.Open(j.path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		return err
	}
	defer func() { _ = guarded(db.Close) }()
	*recs, err = j.read(db, marks)
	return err
}

// create makes an empty journal where there is none: aside, and then moved to its place, so that a crash in the middle
// does not leave a file that looks damaged.
func (j *journal) create() error {
	if _, err := os.Stat(j.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	aside := j.path + ".new"
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bbolt.Open(aside, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range append(kinds[:], string(metaBucket), string(marksBucket)) {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		if err := tx.Bucket(metaBucket).Put(countKey, binary.BigEndian.AppendUint64(nil, 0)); err != nil {
			return err
		}
		return tx.Bucket(metaBucket).Put(formatKey, []byte(journalFormat))
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Rename(aside, j.path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(j.path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// read returns all records that can be read, and what is wrong with the others or with the file.
func (j *journal) read(db *bbolt.DB, marks map[string]string) (recs []Record, err error) {
	tx, err := db.Begin(false)
	if err != nil {
		return nil, err
	}
	defer func() { _ = guarded(tx.Rollback) }()

	info, err := os.Stat(j.path)
	if err != nil {
		return nil, err
	}
	if info.Size() < tx.Size() {
		err = fmt.Errorf("the file is cut off: %d bytes of %d are there", info.Size(), tx.Size())
	}
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		return nil, errors.Join(err, errors.New("it is no journal of gslbd"))
	}
	if f := meta.Get(formatKey); string(f) != journalFormat {
		return nil, errors.Join(err, fmt.Errorf("its format is %s and this version of gslbd reads %q", quote(string(f)), journalFormat))
	}

	// What can be read is read first, a kind at a time: a fault in the midst of one must not hide the others.
	var bad int
	var badWhy error
	for _, kind := range kinds {
		err = errors.Join(err, guarded(func() error {
			b := tx.Bucket([]byte(kind))
			if b == nil {
				return fmt.Errorf("the records of kind %q are gone", kind)
			}
			return b.ForEach(func(k, v []byte) error {
				r, err := unseal(v)
				if err == nil && r.key() != kind+"/"+string(k) {
					err = fmt.Errorf("control: it is %s", quote(r.key()))
				}
				if err != nil {
					if bad++; badWhy == nil {
						badWhy = fmt.Errorf("%s %s: %s", kind, quote(string(k)), strings.TrimPrefix(err.Error(), "control: "))
					}
					return nil
				}
				recs = append(recs, r)
				return nil
			})
		}))
	}
	if bad > 0 {
		err = errors.Join(err, fmt.Errorf("%d records cannot be read, the first of them %w", bad, badWhy))
	}
	if c := meta.Get(countKey); len(c) != 8 || binary.BigEndian.Uint64(c) != uint64(len(recs)+bad) {
		err = errors.Join(err, errors.New("records are missing"))
	}
	b := tx.Bucket(marksBucket)
	if b == nil {
		return recs, errors.Join(err, errors.New("the marks are gone"))
	}
	err = errors.Join(err, b.ForEach(func(k, v []byte) error {
		marks[strings.Clone(string(k))] = strings.Clone(string(v))
		return nil
	}))
	if err != nil {
		return recs, err
	}
	return recs, check(tx)
}

// check reports whether the file is sound as a whole. Whoever calls it has read all of it: tx.Check works in a goroutine
// of its own, where a fault could not be caught.
func check(tx *bbolt.Tx) error {
	pages := int(tx.Size()) / tx.DB().Info().PageSize
	for id := 0; id < pages; id++ {
		p, err := tx.Page(id)
		if err != nil {
			return err
		}
		if p.Type == "free" {
			continue
		}
		if p.OverflowCount < 0 || id+p.OverflowCount >= pages {
			return fmt.Errorf("page %d: it does not end within the file", id)
		}
		id += p.OverflowCount
	}
	var first error
	for err := range tx.Check() {
		if first == nil {
			first = err
		}
	}
	return first
}

// advice writes what is wrong with the journal and what to do, for a person at night.
func (j *journal) advice(err error, kept int) string {
	what := strings.ReplaceAll(err.Error(), "\n", "; ")
	switch {
	case errors.Is(err, bbolt.ErrTimeout):
		return fmt.Sprintf("journal of orders %s: another process holds the file; new orders are refused. Stop that process, then restart gslbd", j.path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOSPC):
		return fmt.Sprintf("journal of orders %s: %s; the %d records in it are in force, new orders are refused. Make the directory writable by gslbd and free space on it, then restart gslbd", j.path, what, kept)
	}
	return fmt.Sprintf("journal of orders %s: %s; the %d records that could be read are in force, new orders are refused. Move the file away and restart gslbd: with etcd the orders come back from there, else give them again",
		j.path, what, kept)
}

// write keeps the records, and marks of this gslbd alone (an empty value takes one away), all of them or none. When it
// returns nil they are on the disk.
func (j *journal) write(recs []Record, marks map[string]string) error {
	return j.update(func(tx *bbolt.Tx) (int, error) {
		more := 0
		for _, r := range recs {
			kind, id := r.kind()
			b := tx.Bucket([]byte(kind))
			if b.Get([]byte(id)) == nil {
				more++
			}
			if err := b.Put([]byte(id), seal(r)); err != nil {
				return 0, err
			}
		}
		b := tx.Bucket(marksBucket)
		for k, v := range marks {
			err := b.Delete([]byte(k))
			if v != "" {
				err = b.Put([]byte(k), []byte(v))
			}
			if err != nil {
				return 0, err
			}
		}
		return more, nil
	})
}

// remove takes records out.
func (j *journal) remove(recs []Record) error {
	return j.update(func(tx *bbolt.Tx) (int, error) {
		less := 0
		for _, r := range recs {
			kind, id := r.kind()
			b := tx.Bucket([]byte(kind))
			if b.Get([]byte(id)) != nil {
				less++
			}
			if err := b.Delete([]byte(id)); err != nil {
				return 0, err
			}
		}
		return -less, nil
	})
}

// update runs do, which says how many records it added, in one transaction.
func (j *journal) update(do func(tx *bbolt.Tx) (int, error)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.db == nil {
		return fmt.Errorf("control: %w: %s", ErrUnavailable, j.fault)
	}
	count := j.count
	faulted := true
	err := guarded(func() error {
		err := j.db.Update(func(tx *bbolt.Tx) error {
			more, err := do(tx)
			if err != nil {
				return err
			}
			count = uint64(int64(j.count) + int64(more))
			return tx.Bucket(metaBucket).Put(countKey, binary.BigEndian.AppendUint64(nil, count))
		})
		faulted = false
		return err
	})
	if faulted { // the database may be locked for ever: it is left as it is
		j.db = nil
		j.fault = j.advice(err, int(j.count))
		return fmt.Errorf("control: %w: %s", ErrUnavailable, j.fault)
	}
	if err != nil {
		j.full = fmt.Sprintf("journal of orders %s: the last order could not be kept: %v; free space on the disk, then give the order again", j.path, err)
		return fmt.Errorf("control: %w: %s", ErrUnavailable, j.full)
	}
	j.count, j.full = count, ""
	return nil
}

// problem says what is wrong; "": nothing.
func (j *journal) problem() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fault != "" {
		return j.fault
	}
	return j.full
}

// close gives up the file. It may be called more than once.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.db == nil {
		return nil
	}
	db := j.db
	j.db, j.fault = nil, fmt.Sprintf("journal of orders %s: gslbd is shutting down", j.path)
	return guarded(db.Close)
}

// guarded runs f and returns its panics and memory faults as errors: bbolt trusts the file that it maps.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged (%v)", p)
		}
	}()
	return f()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal is what is kept of a record: its JSON, and on a second line a checksum, for bbolt has none of its own.
func seal(r Record) []byte {
	b := r.encode()
	return fmt.Appendf(b, "\n%08x", crc32.Checksum(b, castagnoli))
}

func unseal(v []byte) (Record, error) {
	i := bytes.LastIndexByte(v, '\n')
	if i < 0 || string(v[i+1:]) != fmt.Sprintf("%08x", crc32.Checksum(v[:i], castagnoli)) {
		return Record{}, errors.New("it is cut off or altered")
	}
	return decodeRecord(v[:i])
}
