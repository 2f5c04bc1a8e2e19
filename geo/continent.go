package geo

import "strings"

// The countries of each continent, by ISO 3166-1 alpha-2 code (and XK, Kosovo), as GeoNames and the databases assign
// them: Russia is in Europe, Turkey and the Caucasus in Asia, Cyprus in Europe, Egypt in Africa.
const (
	africa = "AO BF BI BJ BW CD CF CG CI CM CV DJ DZ EG EH ER ET GA GH GM GN GQ GW KE KM LR LS LY MA MG ML MR MU MW MZ " +
		"NA NE NG RE RW SC SD SH SL SN SO SS ST SZ TD TG TN TZ UG YT ZA ZM ZW"
	antarctica = "AQ BV GS HM TF"
	asia       = "AE AF AM AZ BD BH BN BT CC CN CX GE HK ID IL IN IO IQ IR JO JP KG KH KP KR KW KZ LA LB LK MM MN MO MV MY NP " +
		"OM PH PK PS QA SA SG SY TH TJ TM TR TW UZ VN YE"
	europe = "AD AL AT AX BA BE BG BY CH CY CZ DE DK EE ES FI FO FR GB GG GI GR HR HU IE IM IS IT JE LI LT LU LV MC MD ME MK " +
		"MT NL NO PL PT RO RS RU SE SI SJ SK SM UA VA XK"
	northAmerica = "AG AI AW BB BL BM BQ BS BZ CA CR CU CW DM DO GD GL GP GT HN HT JM KN KY LC MF MQ MS MX NI PA PM PR SV SX TC " +
		"TT US VC VG VI"
	oceania      = "AS AU CK FJ FM GU KI MH MP NC NF NR NU NZ PF PG PN PW SB TK TL TO TV UM VU WF WS"
	southAmerica = "AR BO BR CL CO EC FK GF GY PE PY SR UY VE"
)

// ContinentOf returns the continent of a country (ISO 3166-1 alpha-2), in two letters; empty: unknown. Flat databases
// and those who write a site's location often give the country alone, and the level `continent` of the geo metric must
// work with them too.
func ContinentOf(country string) string {
	if len(country) != 2 {
		return ""
	}
	for _, c := range [...]struct{ code, countries string }{
		{"AF", africa},
		{"AN", antarctica},
		{"AS", asia},
		{"EU", europe},
		{"NA", northAmerica},
		{"OC", oceania},
		{"SA", southAmerica},
	} {
		if strings.Contains(c.countries, country) {
			return c.code
		}
	}
	return ""
}
